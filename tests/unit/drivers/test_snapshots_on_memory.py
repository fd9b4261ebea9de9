"""Coordinators and a snapshot writer on one broker (E)."""

from collections.abc import AsyncIterator

import pytest

from connectors.errors import FencedError
from connectors.memory.broker import MemoryBroker
from connectors.memory.connector import MemoryConnector
from pipeline.core.buffered_log.accumulator import BatchLimits
from pipeline.drivers.requests import COORDINATOR_SERVICE, CoordinatorRequests, Requests
from schemas import markers
from schemas.markers import Marker
from schemas.placement import system_partition
from schemas.topics import TXN_MARKERS, TopicSpec
from schemas.transactions import Done, End, Open, Opened, Registered, Written
from schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.snapshot_loop import SnapshotLoop
from tests.support.worker_memory import PARTITIONS, MemoryWorker

COORDINATORS = 2
ORDERS = TopicPartition("orders", 0)
SERVING = system_partition(ORDERS, PARTITIONS)


class Rig:
    """A broker, a client of its coordinators, and a snapshot writer."""

    def __init__(self, broker: MemoryBroker, asker: CoordinatorRequests) -> None:
        self.broker = broker
        self.connector = MemoryConnector(broker)
        self.asker = asker
        described = broker.describe("orders")
        assert described is not None
        self.topic_id = described[0].topic_id

    async def write(self, coordinator: int) -> tuple[TxnId, int]:
        """A transaction with one record, and the record's offset."""
        log = self.broker.log(ORDERS)
        assert log is not None
        start = len(self.broker.records(ORDERS))
        there = Registered(ORDERS, EndOffset(start), self.topic_id)
        opened = await self.asker.ask(coordinator, Open(30_000, 1, (there,)))
        assert isinstance(opened, Opened)
        txn = TxnId(coordinator, opened.first_sequence)
        self.broker.append(ORDERS, None, b"record", [("txn", txn.to_bytes())])
        return txn, start

    async def end(self, txn: TxnId, offset: int, *, committed: bool) -> None:
        """Returns when its markers are durable."""
        one = Written(ORDERS, Offset(offset), EndOffset(offset + 1), 1)
        end = End(txn.sequence, committed, (one,) if committed else (), wait_visible=True)
        assert await self.asker.ask(txn.coordinator, end) == Done()

    def markers_left(self) -> list[TxnId]:
        """Whose outcomes the marker log still holds."""
        found = self.broker.records(TopicPartition(TXN_MARKERS, SERVING))
        decoded = (markers.decode(it.key, it.value) for it in found)
        return [it.txn for it in decoded if isinstance(it, Marker)]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    """Two coordinators that serve, and a data topic."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector, coordinators=COORDINATORS):
        writer = connector.writer("asker")
        asker: CoordinatorRequests = Requests(
            COORDINATOR_SERVICE,
            connector,
            writer,
            name="asker",
            limits=BatchLimits(),
            request_timeout_s=10,
            resend_s=0.2,
        )
        await asker.open(partition_count=COORDINATORS, response_partition_count=PARTITIONS)
        yield Rig(broker, asker)
        await asker.close()
        await writer.close()


@pytest.fixture
async def loop(rig: Rig) -> AsyncIterator[SnapshotLoop]:
    """The writer that serves the data partition."""
    made = SnapshotLoop(rig.connector, rig.asker, SERVING)
    await made.begin()
    yield made
    await made.close()


async def test_a_snapshot_stands_for_the_markers_it_has_absorbed(rig: Rig, loop: SnapshotLoop):
    """D4, E1: up to the first open transaction everything is decided without a marker."""
    committed, aborted, still_open = [await rig.write(it) for it in (0, 1, 0)]
    await rig.end(*committed, committed=True)
    await rig.end(*aborted, committed=False)
    await loop.take(ORDERS)
    snapshot = (await loop.table()).snapshot(ORDERS, rig.topic_id)
    assert snapshot is not None
    seen = [snapshot.visible(at, *txn) for txn, at in (committed, aborted, still_open)]
    assert seen == [True, False, None]
    assert rig.markers_left() == []
    await rig.end(*still_open, committed=True)
    await loop.take(ORDERS)
    snapshot = (await loop.table()).snapshot(ORDERS, rig.topic_id)
    assert snapshot is not None
    assert snapshot.visible(still_open[1], *still_open[0]) is True


async def test_another_writer_goes_on_and_the_first_one_is_fenced(rig: Rig, loop: SnapshotLoop):
    """E3, E4: what the zombie knows does no harm, and what it wrote is kept."""
    first = await rig.write(0)
    await rig.end(*first, committed=False)
    await loop.take(ORDERS)
    other = SnapshotLoop(rig.connector, rig.asker, SERVING)
    await other.begin()
    second = await rig.write(1)
    await rig.end(*second, committed=False)
    with pytest.raises(FencedError):
        await loop.take(ORDERS)
    await other.take(ORDERS)
    snapshot = (await other.table()).snapshot(ORDERS, rig.topic_id)
    assert snapshot is not None
    assert [snapshot.visible(at, *txn) for txn, at in (first, second)] == [False, False]
    assert rig.markers_left() == []
    await other.close()
