"""A broker that carries out a request long after its client has given it up.

What a user saw: a broker was frozen for some seconds. `stilltide replicate`, which nobody had
started twice, ended soon after the broker was back: "another owner has taken over: stop". The
broker had read a request for the link's transactional id from a connection that was closed by then,
and so it fenced the link's present writer.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stilltide.connectors.errors import FencedError, RetriableError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.addresses import HOST, Listener, free_port
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.ports.copying import Copies, CopyWriter, Span
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.processes.withholding import INIT_PRODUCER_ID, WithholdingProxy

DATA = TopicPartition("orders", 0)
COPIES = Copies([b"k"], [b"v"], [1_700_000_000_000], [[]])


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[WithholdingProxy]:
    """Keeps the first request for a transactional id back, before a broker with a topic."""
    port = free_port()
    first: list[bytes] = []

    def is_late(kind: int, request: bytes) -> bool:
        if kind != INIT_PRODUCER_ID or first:
            return False
        first.append(request)
        return True

    proxy = WithholdingProxy(port, is_late)
    listener = Listener("LATE", "PLAINTEXT", port, advertised=f"{HOST}:{proxy.port}")
    with LocalCluster("late", tmp_path / "b", fast_start=True, listeners=[listener]) as cluster:
        admin = KafkaConnector(KafkaConfig(cluster.bootstrap)).admin()
        await admin.ensure_topics([TopicSpec(DATA.topic, 1)])
        await admin.close()
        async with proxy:
            yield proxy


def connector(proxy: WithholdingProxy) -> KafkaConnector:
    """A connector of a process of its own that gives a request up soon."""
    return KafkaConnector(KafkaConfig(f"{HOST}:{proxy.port}", request_timeout_s=2))


async def copied(writer: CopyWriter) -> None:
    """Copies a record in a transaction."""
    await writer.begin()
    await writer.copy(DATA, COPIES, Span())
    await writer.flush()
    await writer.commit([NewRecord(DATA, b"k", b"end")])


@pytest.mark.parametrize("exact", [False, True])
async def test_a_copy_writer_that_its_own_late_request_fences_may_begin_again(
    proxy: WithholdingProxy, *, exact: bool
):
    """It is told to begin again; a writer that another process has fenced is told to stop."""
    ours = connector(proxy)
    given_up = ours.copy_writer("link")
    with pytest.raises(RetriableError):
        await given_up.fence()
    assert len(proxy.withheld) == 1
    await given_up.close()
    if exact:
        ours._transactional_ids.exact.add("link")
    writer = ours.copy_writer("link")
    await writer.fence()
    await proxy.deliver()
    with pytest.raises(RetriableError) as fenced:
        await copied(writer)
    assert "arrived late" in fenced.value.detail
    await writer.fence()
    await copied(writer)

    others = connector(proxy).copy_writer("link")
    await others.fence()
    await writer.close()
    await copied(others)
    another = connector(proxy).copy_writer("link")
    await another.fence()
    with pytest.raises(FencedError):
        await copied(others)
    await others.close()
    await another.close()
