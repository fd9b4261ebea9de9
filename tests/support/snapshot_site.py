"""Coordinators and snapshot writers on the memory broker, and one data partition in their care."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from connectors.memory.broker import MemoryBroker
from connectors.memory.connector import MemoryConnector
from pipeline.core.txn_buffer.recovery import Snapshot, SnapshotTable, recover
from pipeline.core.txn_buffer.writer import SnapshotLimits
from pipeline.drivers.requests import COORDINATOR_SERVICE, CoordinatorRequests
from pipeline.drivers.service_line import connect_service
from pipeline.drivers.snapshot_line import SnapshotLine, connect_snapshots
from pipeline.drivers.txn_snapshots import SnapshotDriver
from schemas import markers
from schemas.barriers import Barrier
from schemas.markers import Marker
from schemas.placement import system_partition
from schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, TopicSpec
from schemas.transactions import Done, End, Open, Opened, Registered, Written
from schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.worker_memory import PARTITIONS, WAIT_S, MemoryWorker, until

COORDINATORS = 2
ORDERS = TopicPartition("orders", 0)
SERVING = system_partition(ORDERS, PARTITIONS)
MARKERS = TopicPartition(TXN_MARKERS, SERVING)
SNAPSHOTS = TopicPartition(TXN_SNAPSHOTS, SERVING)

ON_REQUEST = SnapshotLimits(changes_max=1_000_000, interval_ms=600_000)
"""No snapshot comes by itself."""


class SnapshotSite:
    """A broker with a worker, clients of it, and hands to reach around them."""

    def __init__(
        self, broker: MemoryBroker, worker: MemoryWorker, asker: CoordinatorRequests
    ) -> None:
        self.broker, self.worker, self.asker = broker, worker, asker

    @property
    def driver(self) -> SnapshotDriver:
        """Of the writer in whose care `ORDERS` is."""
        return self.worker.snapshots[SERVING]

    @property
    def topic_id(self) -> bytes:
        """Of `ORDERS` as it is now."""
        described = self.broker.describe(ORDERS.topic)
        assert described is not None
        return described[0].topic_id

    async def write(self, coordinator: int) -> tuple[TxnId, int]:
        """A transaction with one record, and the record's offset."""
        log = self.broker.log(ORDERS)
        assert log is not None
        start = log.end
        there = Registered(ORDERS, start, self.topic_id)
        opened = await self.asker.ask(coordinator, Open(30_000, 1, (there,)))
        assert isinstance(opened, Opened)
        txn = TxnId(coordinator, opened.first_sequence)
        self.append(txn)
        return txn, start

    def append(self, txn: TxnId) -> Offset:
        """A record of a transaction, whatever became of it."""
        return self.broker.append(ORDERS, None, b"record", [("txn", txn.to_bytes())])

    async def end(self, txn: TxnId, offset: int, *, committed: bool) -> None:
        """Returns when its markers are durable."""
        one = Written(ORDERS, Offset(offset), EndOffset(offset + 1), 1)
        end = End(txn.sequence, committed, (one,) if committed else (), wait_visible=True)
        assert await self.asker.ask(txn.coordinator, end) == Done()

    async def aborted(self, coordinator: int = 0) -> tuple[TxnId, int]:
        """A transaction with one record that has aborted, and the record's offset."""
        txn, offset = await self.write(coordinator)
        await self.end(txn, offset, committed=False)
        return txn, offset

    def markers_left(self) -> list[TxnId]:
        """Whose outcomes the marker log still holds."""
        decoded = (markers.decode(it.key, it.value) for it in self.broker.records(MARKERS))
        return [it.txn for it in decoded if isinstance(it, Marker)]

    def probes(self) -> int:
        """How many probes the barriers in the marker log answer."""
        decoded = (markers.decode(it.key, it.value) for it in self.broker.records(MARKERS))
        return len({it.probe for it in decoded if isinstance(it, Barrier)})

    def table(self) -> SnapshotTable:
        """What the snapshot partition says."""
        records = self.broker.records(SNAPSHOTS)
        return recover(SERVING, ((it.offset, it.key, it.value) for it in records))

    def snapshot(self) -> Snapshot:
        """The snapshot of `ORDERS`."""
        found = self.table().snapshot(ORDERS, self.topic_id)
        assert found is not None
        return found

    def seen(self, *written: tuple[TxnId, int]) -> list[bool | None]:
        """What the snapshot says of records: visible, hidden, or undecided (D4)."""
        snapshot = self.snapshot()
        return [snapshot.visible(offset, *txn) for txn, offset in written]


@asynccontextmanager
async def snapshot_site(
    broker: MemoryBroker, limits: SnapshotLimits = ON_REQUEST
) -> AsyncIterator[SnapshotSite]:
    """A worker with two coordinators that serves."""
    connector = MemoryConnector(broker)
    worker = MemoryWorker(connector, coordinators=COORDINATORS, snapshots=limits)
    line = connect_service(COORDINATOR_SERVICE, connector, "asker", timeout_s=WAIT_S)
    async with worker, line as (asker, _):
        yield SnapshotSite(broker, worker, asker)


@asynccontextmanager
async def line_to(
    broker: MemoryBroker, *, timeout_s: float = WAIT_S
) -> AsyncIterator[SnapshotLine]:
    """Asks for snapshots."""
    async with connect_snapshots(MemoryConnector(broker), "line", timeout_s=timeout_s) as made:
        yield made


async def fenced_out(driver: SnapshotDriver) -> None:
    """Returns when an ownership has ended."""
    await until(lambda: not driver.serving)


def broker_with_orders() -> MemoryBroker:
    """A broker with the data topic."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec(ORDERS.topic, 1))
    return broker
