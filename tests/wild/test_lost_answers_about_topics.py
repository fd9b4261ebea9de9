"""A broker that does not answer while a member of a group joins.

What a user saw: a broker was frozen for some seconds. A member that joined its group meanwhile got
no partitions for five minutes after the broker was back, without an error or a line in the log. Its
client joins once it has been told of its topics, and asks for them again only at
`topic.metadata.refresh.interval.ms` after its few attempts.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.addresses import HOST, Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.topics import TopicSpec
from tests.contract.rig import Membership
from tests.support.processes.withholding import METADATA, WithholdingProxy

TOPIC = "asked-for"
LOST = 12
"""Questions for the topic without an answer: more than the client's attempts."""

WAIT_S = 150.0
"""Half of the time after which the client asks by itself."""


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[WithholdingProxy]:
    """Loses questions, before a broker that has the topic, with two partitions."""
    port = free_port()

    def is_lost(kind: int, request: bytes) -> bool:
        return kind == METADATA and TOPIC.encode() in request and len(proxy.withheld) < LOST

    proxy = WithholdingProxy(port, is_lost)
    listener = Listener("LOSING", "PLAINTEXT", port, advertised=f"{HOST}:{proxy.port}")
    directory = tmp_path / "broker"
    with LocalCluster("losing", directory, fast_start=True, listeners=[listener]) as cluster:
        admin = KafkaConnector(KafkaConfig(cluster.bootstrap)).admin()
        await admin.ensure_topics([TopicSpec(TOPIC, 2)])
        await admin.close()
        async with proxy:
            yield proxy


async def test_a_member_joins_although_answers_about_its_topics_were_lost(proxy: WithholdingProxy):
    """It gets its partitions soon after the broker answers again."""
    config = KafkaConfig(f"{HOST}:{proxy.port}", request_timeout_s=1)
    member = Membership(KafkaConnector(config).group_reader("joining", "a group"))
    await member.join(TOPIC)
    await member.until(lambda: len(member.held) == 2, WAIT_S)
    assert len(proxy.withheld) == LOST
    assert [kind for kind, _ in member.events] == ["assigned"]
    await member.leave()
