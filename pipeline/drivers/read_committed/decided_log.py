"""Finds the decided ends of data partitions, and the visible records below them.

*Source*: docs/protocols H (decided end), D; I7 (a controller reads the log).
*Invariants*: every answer is below the last stable offset and not above the first undecided record;
records of a range are returned only if the whole range is in the log.

Tails each partition from an offset below which everything is decided, and keeps the records read
last; takes 2 us for each record.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from stilltide.connectors.errors import OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.pipeline.core.groups.frontier import LogRead, ReadLog, VisibleRecord
from stilltide.pipeline.core.read_committed.effects import Deliver
from stilltide.pipeline.core.read_committed.machine import PartitionFilter
from stilltide.pipeline.drivers.read_committed.decided import DecidedPartitions
from stilltide.pipeline.drivers.read_committed.evidence import EvidenceDeps
from stilltide.pipeline.drivers.read_committed.resting_scans import RestingScans
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.pauses import Pauses
from stilltide.pipeline.drivers.shared.txn_headers import txns_of
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

T = TypeVar("T")

WAITING_MAX = 10_000
"""Records of a partition held behind an undecided one before fetching it pauses."""

KEPT_MAX = 20_000
"""Visible records kept for a partition; with more, the oldest ones are dropped down to half."""


@dataclass(slots=True)
class _Tail:
    """The tail of one partition, and the visible records from `kept_from` on."""

    machine: PartitionFilter[VisibleRecord]  # as in `DecidedPartitions`
    read_to: Offset
    kept_from: Offset
    kept: list[VisibleRecord] = field(default_factory=list[VisibleRecord])

    def keep(self, records: Sequence[VisibleRecord]) -> None:
        self.kept += records
        if len(self.kept) > KEPT_MAX:
            del self.kept[: len(self.kept) - KEPT_MAX // 2]
            self.kept_from = self.kept[0].offset

    def answer(self, wanted: ReadLog, end: EndOffset) -> LogRead:
        low = bisect_left(self.kept, wanted.first, key=lambda one: one.offset)
        high = bisect_left(self.kept, end, lo=low, key=lambda one: one.offset)
        return LogRead(self.kept[low:high], end)


class DecidedLog:
    """Reads data, markers and snapshots in `run`, and answers questions about decided records.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        outages: repeats calls while the cluster is away.
        client_id: prefix of the clients' names at the brokers.
        marker_partitions: number of partitions of txn-markers.
        snapshot_partitions: number of partitions of txn-snapshots.
        first: finds an offset of a partition below which everything is decided; the tail begins
            there.
        moved: called when the decided end of a partition has moved.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        outages: OutageGuard,
        *,
        client_id: str,
        marker_partitions: int,
        snapshot_partitions: int,
        first: Callable[[TopicPartition], Awaitable[Offset]],
        moved: Callable[[TopicPartition], None] = lambda _data: None,
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._outages = outages
        self._client_id = client_id
        self._first = first
        self._moved = moved
        self._tails: dict[TopicPartition, _Tail] = {}
        self._added = asyncio.Event()
        self._batch = asyncio.Event()
        self._pauses: Pauses | None = None
        self._scans = RestingScans(connector, f"{client_id}-scan")
        deps = EvidenceDeps(
            connector, admin, outages, client_id, marker_partitions, snapshot_partitions
        )
        self._decided = DecidedPartitions[VisibleRecord](
            deps,
            waiting_max=WAITING_MAX,
            delivered=self._delivered,
            evidence_read=self._evidence_read,
        )

    async def add(self, data: TopicPartition) -> None:
        """Starts to read an existing partition; raises the errors of `first`."""
        if data in self._tails:
            return
        first = await self._first(data)
        self._decided.add({data: first})
        machine = self._decided.machine(data)
        assert machine is not None
        self._tails[data] = _Tail(machine, first, first)
        self._added.set()

    async def run(self) -> None:
        """Reads until cancelled.

        Raises:
            UnavailableError: the cluster stayed away.
            FatalError: a topic is gone; OffsetOutOfRangeError: the log start has passed the tail.
            Errors of `OutcomeTail.run`.
        """
        while True:
            self._added.clear()
            works = [self._added.wait()]
            if self._tails:
                works += [self._read(), self._decided.run()]
            tasks = [asyncio.ensure_future(work) for work in works]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                ended = [task for task in tasks if task.done()]
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            for task in ended:
                task.result()

    async def close(self) -> None:
        """Releases connections."""
        await self._scans.close()

    def decided_end(self, data: TopicPartition) -> EndOffset:
        """The decided end as of the last read."""
        return self._tails[data].machine.position

    async def decided_end_now(self, data: TopicPartition) -> EndOffset:
        """The decided end, computed from last stable offset, markers and snapshots as of now (H).

        Raises:
            RetriableError: the cluster is away, or the topic is gone.
        """
        tail = self._tails[data]
        stable = await self._end(data, committed=True)
        markers, snapshots = self._decided.sources(data)
        markers_end = await self._end(markers, committed=False)
        # The outcome of a marker that was trimmed before it was read is in a snapshot only.
        snapshots_end = await self._end(snapshots, committed=True)
        while tail.read_to < stable or not self._decided.was_read(data, markers_end, snapshots_end):
            self._batch.clear()
            await self._batch.wait()
        return tail.machine.position

    async def visible(self, data: TopicPartition, wanted: ReadLog) -> LogRead:
        """The visible records of a range, up to the decided end.

        None of them if a part of the range has left the log.
        """
        tail = self._tails[data]
        nothing = LogRead([], EndOffset(wanted.first))
        end = EndOffset(min(wanted.end, tail.machine.position))
        if end <= wanted.first:
            return nothing
        if wanted.first >= tail.kept_from:
            found = tail.answer(wanted, end)
        else:
            try:
                found = await self._scan(tail, OffsetRange(data, wanted.first, end))
            except OffsetOutOfRangeError:
                return nothing
        starts = await self._outages.call(lambda: self._admin.start_offsets([data]))
        if data not in starts or starts[data] > wanted.first:
            return nothing
        return found

    async def _end(self, data: TopicPartition, *, committed: bool) -> EndOffset:
        ends = await self._admin.end_offsets([data], committed=committed)
        if data not in ends:
            raise RetriableError(f"{data} does not exist")
        return ends[data]

    async def _scan(self, tail: _Tail, read: OffsetRange) -> LogRead:
        found: list[VisibleRecord] = []
        async with aclosing(self._scans.scan(read)) as batches:
            async for records in batches:
                visible, undecided = tail.machine.read_again(_fed(records))
                found += visible
                if undecided is not None:
                    return LogRead(found, undecided)
        return LogRead(found, read.end)

    async def _read(self) -> None:
        reader = self._connector.reader(f"{self._client_id}-data")
        try:
            await reader.assign({data: tail.read_to for data, tail in self._tails.items()})
            self._pauses = Pauses(reader)
            while True:
                by_partition: dict[TopicPartition, list[Record | EndReached]] = {}
                for item in await self._outages.call(reader.read, may_rest=True):
                    data = item.data
                    by_partition.setdefault(data, []).append(item)
                for data, items in by_partition.items():
                    self._items_read(data, items)
                self._pauses.apply(self._decided.full)
                self._batch.set()
                await asyncio.sleep(0)  # other tasks run during a long backlog
        finally:
            self._pauses = None
            await reader.close()

    def _evidence_read(self) -> None:
        if self._pauses is not None:
            self._pauses.apply(self._decided.full)  # the reader may wait with all paused
        self._batch.set()

    def _items_read(self, data: TopicPartition, items: Sequence[Record | EndReached]) -> None:
        tail = self._tails[data]
        records = [it for it in items if isinstance(it, Record)]
        if records:
            tail.read_to = Offset(records[-1].offset + 1)
            headers = [it.headers for it in records]
            visible = [VisibleRecord(it.offset, origin_of(it.headers)) for it in records]
            self._decided.records_read(data, [it.offset for it in records], headers, visible)
        for item in items:
            if isinstance(item, EndReached) and item.end_offset > tail.read_to:
                tail.read_to = Offset(item.end_offset)
                self._decided.end_reached(data, item.end_offset)

    def _delivered(self, data: TopicPartition, found: Deliver[VisibleRecord]) -> None:
        self._tails[data].keep(found.payloads)
        self._moved(data)


async def answered(
    reading: Generator[ReadLog, LogRead, T], read: Callable[[ReadLog], Awaitable[LogRead]]
) -> T:
    """Carries out the reads of a computation, returns its result; raises the errors of `read`."""
    try:
        wanted = next(reading)
        while True:
            wanted = reading.send(await read(wanted))
    except StopIteration as done:
        return done.value


def _fed(records: Sequence[Record]) -> Iterable[tuple[int, bytes | None, VisibleRecord]]:
    return (
        (record.offset, txn, VisibleRecord(record.offset, origin_of(record.headers)))
        for record, txn in zip(records, txns_of(records), strict=True)
    )
