"""`stilltide snapshot take` on the memory broker."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.cli.snapshot import take_all, taken_rows
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.topics import TopicSpec, system_partition
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import PARTITIONS, WAIT_S, MemoryWorker

COUNT = 5
"""Partitions of the data topic: both snapshot writers serve some of them."""

SOON_S = 3.0
"""A time-out that is meant to run out."""


@pytest.fixture
async def connector() -> MemoryConnector:
    """Of a broker with a data topic and six records."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", COUNT))
    for _ in range(6):
        broker.append(TopicPartition("orders", 2), None, b"plain", None)
    return MemoryConnector(broker)


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker that takes snapshots."""
    async with MemoryWorker(connector, snapshots=SnapshotLimits()) as made:
        yield made


async def test_every_partition_is_taken(connector: MemoryConnector, worker: MemoryWorker):
    """Without a choice all of them; rows say where each stands."""
    taken, ends = await take_all(connector, "orders", (), WAIT_S)
    assert all(taken.values())
    rows = taken_rows("orders", {it: one for it, one in taken.items() if one is not None}, ends)
    assert [it["partition"] for it in rows] == list(range(COUNT))
    assert rows[2] == {
        "topic": "orders",
        "partition": 2,
        "max_read_position": 6,
        "behind": 0,
        "aborted": 0,
    }


async def test_partitions_are_chosen(connector: MemoryConnector, worker: MemoryWorker):
    """Once each, in order; one that is not there is refused before anything is asked."""
    taken, _ = await take_all(connector, "orders", (2, 0, 2), WAIT_S)
    assert list(taken) == [0, 2]
    with pytest.raises(RefusedError, match="there is no partition 5"):
        await take_all(connector, "orders", (0, COUNT), WAIT_S)
    with pytest.raises(FatalError, match="the topic does not exist"):
        await take_all(connector, "nothing", (), WAIT_S)


async def test_a_writer_that_does_not_answer_is_told_from_the_others(
    connector: MemoryConnector, worker: MemoryWorker
):
    """Its partitions have no answer; the others have theirs."""
    serving = [system_partition(TopicPartition("orders", it), PARTITIONS) for it in range(COUNT)]
    assert len(set(serving)) == PARTITIONS
    await worker.owners.snapshots.assign(set(serving) - {serving[0]})
    taken, _ = await take_all(connector, "orders", (), SOON_S)
    assert [one is None for one in taken.values()] == [it == serving[0] for it in serving]
