"""Every kind of bad record in every system topic of a memory broker: nobody ends (B6, B10, C10)."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.groups.read_elsewhere import read_group_signals
from stilltide.pipeline.drivers.native.evidence import indexed_partitions
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.passed_over import foreign_records
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.drivers.snapshots.outcomes import gather_evidence
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.topics import (
    PENDING_ACK_LOG,
    TXN_LOG,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
    TopicSpec,
    system_topics,
)
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker
from tests.support.hostile import is_harmless
from tests.support.intruders.kinds import kinds

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.topics(TopicSpec(ORDERS.topic, 1))
WAYS = ("plain", "committed", "aborted", "left open")
SPECS = {spec.name: spec for spec in system_topics(coordinators=1, partitions=2)}


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with every kind of owner that is asked."""
    async with MemoryWorker(connector, snapshots=SnapshotLimits()) as made:
        yield made


def intrude(broker: MemoryBroker, topic: str) -> int:
    """Writes every kind in every way to every partition; returns how many to each."""
    made = kinds(topic, compacted="compact" in SPECS[topic].configs["cleanup.policy"])
    for partition in range(SPECS[topic].partition_count):
        data = TopicPartition(topic, partition)
        for kind in made:
            broker.append(data, kind.key, kind.value, kind.headers)
        for way in WAYS[1:]:
            for kind in made:
                broker.transactions.append_open(way, data, kind.key, kind.value, kind.headers)
    broker.transactions.end_open("committed", committed=True)
    broker.transactions.end_open("aborted", committed=False)
    return len(made)


async def serves(connector: MemoryConnector, worker: MemoryWorker, group: str) -> None:
    """A transaction commits and is read, a snapshot is taken, and no owner has ended."""
    async with TransactionClient(connector=connector) as client:
        async with client.transaction() as txn:
            await txn.send(ORDERS.topic, group.encode())
        assert txn.state == "committed"
    async with SnapshotLine(connector, "test", timeout_s=10) as line:
        await line.take(ORDERS)
    reader = Subscription([ORDERS.topic], group=group, connector=connector)
    async with asyncio.timeout(10), reader as it:
        while (await anext(it)).value != group.encode():
            """Reads up to the record of this call."""
    assert not worker.ends


async def readers_pass(connector: MemoryConnector) -> None:
    """Readers of a system topic read past everything."""
    settings = DynamicSettings(connector)
    await settings.open()
    await settings.close()
    admin = connector.admin()
    assert await indexed_partitions(connector, admin) == []
    assert not (await read_group_signals(connector, admin, [ORDERS], "g"))[ORDERS].updates
    assert [it.data for it in (await gather_evidence(connector, [ORDERS.topic])).data] == [ORDERS]
    await admin.close()


@pytest.mark.parametrize("topic", SPECS)
async def test_no_record_ends_anybody(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, topic: str
):
    """Written while the worker runs, and there when another one begins."""
    metrics = WorkerMetrics("test", CollectorRegistry())
    foreign_records(connector).counter = metrics.foreign_records
    with capture_logs() as said:
        count = intrude(broker, topic)
        assert count >= 80
        if topic == TXN_SNAPSHOTS:  # snapshots behind an open transaction are seen when it ends
            broker.transactions.end_open("left open", committed=False)
        await serves(connector, worker, "before")
        broker.transactions.end_open("left open", committed=False)
        await readers_pass(connector)
        worker.revoke()
        async with MemoryWorker(connector, snapshots=SnapshotLimits()) as successor:
            await serves(connector, successor, "after")
    assert all(is_harmless(str(it.get("begins"))) for it in said)
    if topic in {TXN_LOG, PENDING_ACK_LOG}:
        assert sample(worker.metrics, "log_foreign_entries", topic) == len(WAYS) * count
    if topic == TXN_MARKERS:
        assert sample(metrics, "foreign_records", topic) == len(WAYS) * count
    if topic == TXN_SNAPSHOTS:
        assert sample(metrics, "foreign_records", topic) == 2 * count


def sample(metrics: WorkerMetrics, name: str, topic: str) -> float | None:
    """A counter of the first partition of a topic."""
    labels = {"cluster": "test", "topic": topic, "partition": "0"}
    return metrics.registry.get_sample_value(f"stilltide_{name}_total", labels)
