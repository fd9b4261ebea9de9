"""Finds the decided ends of data partitions, and the visible records below them.

*Source*: docs/protocols D1, D2, D7, H1 (decided end); I3, I7 (a controller reads the log).
*Invariants*: every answer is below the last stable offset and not above the first undecided record;
records of a range are returned only if the whole range is in the log.

Tails each partition from an offset below which everything is decided, and keeps the records read
last; takes 2 us for each record.
"""

import asyncio
from bisect import bisect_left
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeVar

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import EndReached, Fetching, LogReader, Record
from stilltide.pipeline.core.groups.frontier import LogRead, ReadLog, VisibleRecord
from stilltide.pipeline.core.read_committed.machine import Deliver, PartitionFilter, Withheld
from stilltide.pipeline.drivers.read_committed.decided import DecidedPartitions
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.joint_question import JointQuestion
from stilltide.pipeline.drivers.shared.log_scan import Pauses, scan
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.shared.txn_headers import txns_of
from stilltide.schemas.replication.origins import origin_of
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

T = TypeVar("T")

WAITING_MAX = 10_000
"""Records of a partition held behind an undecided one before fetching it pauses."""

KEPT_MAX = 20_000
"""Visible records kept for a partition; with more, the oldest ones are dropped down to half."""


REST_S = 10.0
"""Time after a scan until its reader is closed; a new one takes some hundredths of a second."""


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
        low = bisect_left(self.kept, wanted.first, key=attrgetter("offset"))
        high = bisect_left(self.kept, end, lo=low, key=attrgetter("offset"))
        return LogRead(self.kept[low:high], end)


@dataclass(eq=False)
class _Asked:
    """A scan that somebody waits for.

    Attributes:
        wanted: the range, without what was handed over already.
        parts: what was read, an error, or None at the end.
    """

    wanted: OffsetRange
    parts: "asyncio.Queue[list[Record] | Exception | None]" = field(default_factory=asyncio.Queue)


TOGETHER_MAX = 100
"""Most ranges that are scanned together."""

TOGETHER_OFFSETS_MAX = 200_000
"""Most offsets of ranges that are scanned together, unless one alone has more."""


class RestingScans:
    """Scans the ranges that are asked for meanwhile together, and holds a reader while ranges come.

    The threads of a reader, about five, look for orders and answers also while the reader waits for
    its next range. A new assignment takes some hundredths of a second, for any number of ranges.
    Used on one event loop.

    Args:
        connector: the cluster.
        client_id: name of the reader at the brokers.
    """

    def __init__(self, connector: Connector, client_id: str) -> None:
        self._connector = connector
        self._client_id = client_id
        self._asked: list[_Asked] = []  # in the order of their questions, until they have ended
        self._running: asyncio.Task[None] | None = None
        self._reader: LogReader | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def scan(self, wanted: OffsetRange) -> AsyncGenerator[list[Record], None]:
        """The records of a range, as `log_scan.scan`."""
        asked = _Asked(wanted)
        self._asked.append(asked)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        while (part := await asked.parts.get()) is not None:
            if isinstance(part, Exception):
                raise part
            yield part

    async def _run(self) -> None:
        """Scans until nobody waits."""
        self._end_rest()
        while self._asked:
            await self._try(_together(self._asked))
        self._rest = asyncio.get_running_loop().call_later(REST_S, self._rested)

    async def _try(self, together: Sequence[_Asked]) -> None:
        """Scans these ranges; an error is that of all, unless one of them is not in its log."""
        try:
            await self._scan(together)
        except Exception as error:  # noqa: BLE001 - whoever asked has to know
            if isinstance(error, OffsetOutOfRangeError) and len(together) > 1:
                for alone in together:
                    await self._try([alone])
            else:
                self._end(together, error)

    async def _scan(self, together: Sequence[_Asked]) -> None:
        if self._reader is None:
            self._reader = self._connector.reader(self._client_id, fetching=Fetching.SCANNING)
        by_data = {asked.wanted.data: asked for asked in together}
        async with aclosing(scan(self._reader, [it.wanted for it in together])) as batches:
            async for records in batches:
                parts: dict[TopicPartition, list[Record]] = {}
                for record in records:
                    parts.setdefault(record.data, []).append(record)
                for data, part in parts.items():
                    asked = by_data[data]
                    asked.wanted = asked.wanted._replace(start=Offset(part[-1].offset + 1))
                    asked.parts.put_nowait(part)
        self._end(together, None)

    def _end(self, ended: Sequence[_Asked], error: Exception | None) -> None:
        for asked in ended:
            self._asked.remove(asked)
            asked.parts.put_nowait(error)

    async def close(self) -> None:
        """Releases the connection; scans that have not ended fail. Safe to call twice."""
        await cancelled(self._running)
        self._end([*self._asked], FatalError("the reader was closed"))
        self._end_rest()
        self._rested()
        if self._closing is not None:
            await self._closing

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _rested(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._closing = asyncio.create_task(_closed(reader, self._closing))


def _together(asked: Sequence[_Asked]) -> list[_Asked]:
    """The first scans, of which no two are of one partition."""
    together: dict[TopicPartition, _Asked] = {}
    count = 0
    for question in asked:
        data, start, end = question.wanted
        count += end - start
        is_full = len(together) == TOGETHER_MAX or count > TOGETHER_OFFSETS_MAX
        if together and (is_full or data in together):
            break
        together[data] = question
    return [*together.values()]


async def _closed(reader: LogReader, earlier: "asyncio.Task[None] | None") -> None:
    """Closes a reader after the one before it."""
    if earlier is not None:
        await earlier
    await reader.close()


class DecidedLog:
    """Reads data, markers and snapshots in `run`, and answers questions about decided records.

    Args:
        logs: the cluster, and where its markers and snapshots are.
    """

    def __init__(self, logs: OutcomeLogs) -> None:
        self._logs = logs
        self._tails: dict[TopicPartition, _Tail] = {}
        self._added = asyncio.Event()
        self._batch = asyncio.Event()
        self._pauses: Pauses | None = None
        self._scans = RestingScans(logs.connector, f"{logs.client_id}-scan")
        self._log_starts = JointQuestion[TopicPartition, Offset](
            partial(logs.outages.call, logs.admin.start_offsets)
        )
        self._decided = DecidedPartitions[VisibleRecord](logs, self, waiting_max=WAITING_MAX)

    def add(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Reads other partitions, each from an offset on below which everything is decided.

        All readers begin again: add partitions together.
        """
        self._decided.add(positions)
        for data, first in positions.items():
            machine = self._decided.machine(data)
            assert machine is not None
            self._tails[data] = _Tail(machine, first, first)
        self._added.set()

    async def run(self) -> None:
        """Reads until cancelled.

        Raises:
            UnavailableError: the cluster stayed away.
            FatalError: a topic is gone; OffsetOutOfRangeError: the log start has passed the tail.
            Errors of `DecidedPartitions.run`.
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
                await cancelled(*tasks)
            for task in ended:
                task.result()

    async def close(self) -> None:
        """Releases connections."""
        await self._scans.close()
        await self._log_starts.close()

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
            read = tail.answer(wanted, end)
        else:
            try:
                read = await self._scan(tail, OffsetRange(data, wanted.first, end))
            except OffsetOutOfRangeError:
                return nothing
        log_start = await self._log_starts.about(data)
        if log_start is None or log_start > wanted.first:
            return nothing
        return read

    async def _end(self, data: TopicPartition, *, committed: bool) -> EndOffset:
        ends = await self._logs.admin.end_offsets([data], committed=committed)
        if data not in ends:
            raise RetriableError(f"{data} does not exist")
        return ends[data]

    async def _scan(self, tail: _Tail, read: OffsetRange) -> LogRead:
        collected: list[VisibleRecord] = []
        async with aclosing(self._scans.scan(read)) as batches:
            async for records in batches:
                visible, undecided = tail.machine.read_again(_fed(records))
                collected += visible
                if undecided is not None:
                    return LogRead(collected, undecided)
        return LogRead(collected, read.end)

    async def _read(self) -> None:
        reader = self._logs.connector.reader(f"{self._logs.client_id}-data")
        try:
            await reader.assign({data: tail.read_to for data, tail in self._tails.items()})
            self._pauses = Pauses(reader)
            while True:
                by_partition: dict[TopicPartition, list[Record | EndReached]] = {}
                for item in await self._logs.outages.read(reader.read):
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

    def evidence_read(self) -> None:
        """A batch of markers or snapshots was read."""
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

    def delivered(self, data: TopicPartition, batch: Deliver[VisibleRecord]) -> None:
        """Keeps visible records."""
        self._tails[data].keep(batch.payloads)

    def withheld(self, _data: TopicPartition, _withheld: Withheld) -> None:
        """Another reader reports it."""

    def undecided_changed(self) -> None:
        """The decided end says so."""


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
