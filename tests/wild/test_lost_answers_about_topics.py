"""A broker that does not answer while a member of a group joins.

What a user saw: a broker was frozen for some seconds. A member that joined its group meanwhile got
no partitions for five minutes after the broker was back, without an error or a line in the log. Its
client joins once it has been told of its topics, and asks for them again only at
`topic.metadata.refresh.interval.ms` after its few attempts.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.addresses import HOST, Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.topics import TopicSpec
from tests.contract.rig import Membership

TOPIC = "asked-for"
LOST = 12
"""Questions for the topic without an answer: more than the client's attempts."""

WAIT_S = 150.0
"""Half of the time after which the client asks by itself."""

_METADATA = 3


class LosingProxy:
    """Relays connections to a broker, but for requests for the metadata of the topic.

    Args:
        broker_port: port of the broker.

    Attributes:
        port: port on which the proxy listens.
        lost: how many requests have been lost; those after `LOST` pass.
    """

    def __init__(self, broker_port: int) -> None:
        self.port = free_port()
        self.lost = 0
        self._broker_port = broker_port
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._relay, HOST, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _relay(self, asked: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(HOST, self._broker_port)
        with suppress(OSError, asyncio.IncompleteReadError, ExceptionGroup):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pass_on(asked, to_broker))
                tasks.create_task(_copy(from_broker, answers))
        for end in (answers, to_broker):
            end.transport.abort()

    async def _pass_on(self, asked: asyncio.StreamReader, broker: asyncio.StreamWriter) -> None:
        while True:
            size = await asked.readexactly(4)
            request = await asked.readexactly(*struct.unpack(">i", size))
            (kind,) = struct.unpack(">h", request[:2])
            if kind == _METADATA and TOPIC.encode() in request and self.lost < LOST:
                self.lost += 1
            else:
                broker.write(size + request)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(65536):
        target.write(piece)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[LosingProxy]:
    """Before a broker that has the topic, with two partitions."""
    port = free_port()
    proxy = LosingProxy(port)
    listener = Listener("LOSING", "PLAINTEXT", port, advertised=f"{HOST}:{proxy.port}")
    directory = tmp_path / "broker"
    with LocalCluster("losing", directory, fast_start=True, listeners=[listener]) as cluster:
        admin = KafkaConnector(KafkaConfig(cluster.bootstrap)).admin()
        await admin.ensure_topics([TopicSpec(TOPIC, 2)])
        await admin.close()
        async with proxy:
            yield proxy


async def test_a_member_joins_although_answers_about_its_topics_were_lost(proxy: LosingProxy):
    """It gets its partitions soon after the broker answers again."""
    config = KafkaConfig(f"{HOST}:{proxy.port}", request_timeout_s=1)
    member = Membership(KafkaConnector(config).group_reader("joining", "a group"))
    await member.join(TOPIC)
    await member.until(lambda: len(member.held) == 2, WAIT_S)
    assert proxy.lost == LOST
    assert [kind for kind, _ in member.events] == ["assigned"]
    await member.leave()
