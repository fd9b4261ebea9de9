import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.read_committed.outcome_tails import MarkerTail, OutcomeLogs
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.schemas.coordinator.markers import (
    Barrier,
    Marker,
    Probe,
    encode_barrier,
    encode_barrier_key,
    encode_key,
    encode_value,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.topics import TXN_MARKERS, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import MARKER_PARTITIONS, CoordinatedTopic
from tests.support.coordinator.worker_memory import until

X = TxnId(0, 1)


class Rig:
    """A tail, the markers it has read, and a topic to write markers for."""

    def __init__(self, broker: MemoryBroker, topic: CoordinatedTopic) -> None:
        self.broker = broker
        connector = MemoryConnector(broker)
        admin = connector.admin()
        self.topic = topic
        self.read: list[Marker] = []
        self.batch = asyncio.Event()
        logs = OutcomeLogs(
            connector,
            admin,
            OutageGuard(admin, timeout_s=1.0),
            "test",
            marker_partitions=MARKER_PARTITIONS,
            snapshot_partitions=1,
        )
        self.absorbed: dict[TopicPartition, int] = {}
        self.tail = MarkerTail(logs, self, self)
        self.same = next(p for p in range(1, 16) if topic.markers_of(p) == topic.markers_of(0))
        self.other = next(p for p in range(1, 16) if topic.markers_of(p) != topic.markers_of(0))

    async def absorbed_to(self, partitions: Iterable[TopicPartition]) -> Offset:
        """What snapshots have absorbed of the markers of all these data partitions."""
        return Offset(min(self.absorbed.get(data, 0) for data in partitions))

    def marker_read(self, marker: Marker) -> None:
        """Keeps a marker."""
        self.read.append(marker)

    def outcomes_read(self) -> None:
        """A batch was read."""
        self.batch.set()

    @asynccontextmanager
    async def running(self, *partitions: int) -> AsyncIterator[None]:
        """Runs the tail until the markers of these partitions were read to their end."""
        running = asyncio.create_task(self.tail.run())
        try:
            while any(self.tail.caught_up_at(self.topic.at(p)) is None for p in partitions):
                await self.batch.wait()
                self.batch.clear()
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def marker(data: TopicPartition, txn: TxnId) -> tuple[bytes, bytes]:
    """Key and value of an abort."""
    value = encode_value(Marker(data, txn, False, EndOffset(0), None, 0, bytes(16)))
    return encode_key(data, txn), value


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """A tail on a broker of the test's own."""
    broker = MemoryBroker()
    topic = await CoordinatedTopic.create(MemoryConnector(broker), "orders", 16)
    yield Rig(broker, topic)
    await topic.close()


async def test_a_partition_added_later_gets_its_markers_from_the_start(rig: Rig):
    """D5: the marker partition was read on for another, and is read again from its begin."""
    await rig.topic.commit(rig.same, X, 1)
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        assert [marker.data for marker in rig.read] == [rig.topic.at(rig.same)]
    rig.read.clear()
    rig.tail.add([rig.topic.at(rig.same)])
    async with rig.running(rig.same):
        assert [marker.data for marker in rig.read] == [rig.topic.at(rig.same)]


async def test_markers_that_a_snapshot_has_absorbed_are_not_read(rig: Rig):
    """E9: the partition whose snapshot has absorbed least says where its markers begin."""
    source = rig.topic.markers_of(0)
    for sequence in range(4):
        rig.broker.append(source, *marker(rig.topic.at(0), TxnId(0, sequence)), [])
    rig.absorbed = {rig.topic.at(0): 3, rig.topic.at(rig.same): 2}
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        assert [it.txn.sequence for it in rig.read] == [3]
    rig.read.clear()
    rig.tail.add([rig.topic.at(rig.same)])
    async with rig.running(rig.same):
        assert [it.txn.sequence for it in rig.read] == [2, 3]


async def test_markers_that_were_read_are_not_read_again_for_others(rig: Rig):
    """A rebalance that adds another marker partition goes on where the first one stood."""
    await rig.topic.commit(0, X, 1)
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        assert len(rig.read) == 1
    rig.read.clear()
    await rig.topic.commit(rig.other, X, 1)
    rig.tail.add([rig.topic.at(rig.other)])
    async with rig.running(rig.other):
        assert [marker.data for marker in rig.read] == [rig.topic.at(rig.other)]


async def test_a_removed_partition_is_forgotten(rig: Rig):
    """What comes back after a removal starts anew, and counts as unread until it was read."""
    await rig.topic.commit(0, X, 1)
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        pass
    rig.tail.remove([rig.topic.at(0)])
    assert rig.tail.caught_up_at(rig.topic.at(0)) is None
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        assert len(rig.read) == 2


async def test_markers_that_are_trimmed_before_they_are_read_are_passed_over(rig: Rig):
    """D5: a snapshot has absorbed them; reading goes on at the new log start."""
    rig.tail.add([rig.topic.at(0)])
    source = rig.topic.markers_of(0)
    async with rig.running(0):
        for sequence in range(3):
            rig.broker.append(source, *marker(rig.topic.at(0), TxnId(0, sequence)), [])
        rig.broker.delete_records(source, Offset(2))
        await until(lambda: rig.read)
    assert [it.txn.sequence for it in rig.read] == [2]


async def test_markers_trimmed_before_the_first_reading_are_passed_over(rig: Rig):
    """D5: the log start is looked up before the markers are read from it."""
    for sequence in range(3):
        await rig.topic.commit(0, TxnId(0, sequence), 1)
    source = rig.topic.markers_of(0)
    rig.broker.delete_records(source, Offset(3))
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        assert (rig.read, rig.tail.position(rig.topic.at(0))) == ([], 3)


async def test_a_marker_log_that_ends_below_the_position_is_an_error(rig: Rig):
    """A topic created anew is no trimmed one: what was read of it may be void."""
    rig.tail.add([rig.topic.at(0)])
    for sequence in range(3):
        await rig.topic.commit(0, TxnId(0, sequence), 1)
    running = asyncio.create_task(rig.tail.run())
    await until(lambda: rig.read)
    rig.broker.delete_topic(TXN_MARKERS)
    rig.broker.create_topic(TopicSpec(TXN_MARKERS, MARKER_PARTITIONS))
    with pytest.raises(OffsetOutOfRangeError):
        await running


async def test_barriers_are_passed_over(rig: Rig):
    """E1: they lie among the markers, for snapshot writers."""
    value = encode_barrier(Barrier(2, Probe(b"n", 1), 7, ()))
    await rig.topic.write_marker_bytes(0, encode_barrier_key(2), value)
    await rig.topic.commit(0, X, 1)
    rig.tail.add([rig.topic.at(0)])
    async with rig.running(0):
        assert [marker.txn for marker in rig.read] == [X]


async def test_a_missing_marker_partition_is_named(rig: Rig):
    """A marker topic with fewer partitions than the placement needs is an error."""
    rig.tail._logs = replace(rig.tail._logs, marker_partitions=1000)
    rig.tail.add([rig.topic.at(0)])
    with pytest.raises(FatalError, match="does not exist") as caught:
        await rig.tail.run()
    assert caught.value.topic == "stilltide.txn-markers"


async def test_only_damage_of_what_is_served_stops_it(rig: Rig):
    """B10: damage of another data partition, a barrier, and what was written again are passed."""
    served, other = rig.topic.at(0), rig.topic.at(rig.same)
    key, value = marker(served, X)
    for damaged in (encode_key(other, X), b"b" + bytes(8), b"?", key):
        await rig.topic.write_marker_bytes(0, damaged, b"\xff")
    await rig.topic.write_marker_bytes(0, key, value)
    rig.tail.add([served])
    async with rig.running(0):
        assert [one.data for one in rig.read] == [served]
    last = await rig.topic.write_marker_bytes(0, key, b"\xff")
    with pytest.raises(DecodeError) as caught:
        await rig.tail.run()
    assert caught.value.place == f"{rig.topic.markers_of(0)}@{last}"
    assert f"stilltide repair {TXN_MARKERS} --partition" in caught.value.hint
