"""Reads the latest ended transactions from the end of txn-markers backwards.

*Source*: docs/protocols E9. Needs no worker: the markers that are kept tell.
*Invariants*: a partition is read back until its markers are older than those of every transaction
that is told, or to its log start.
"""

from collections.abc import Callable
from typing import NamedTuple

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, LogReader, TimedRecord
from stilltide.pipeline.core.coordinator.history import EndedTransaction, MarkerHistory
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.shared.passed_over import pass_over
from stilltide.pipeline.errors import HistoryCutError
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.topics import TXN_MARKERS
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

FIRST_MARKERS = 1000
"""Markers of a partition that are read first; each further step reads twice as many."""

FOLLOWED_MAX = 50_000
"""Markers since the last read after which a tail begins at the ends again."""

MARKERS_MAX = 5_000_000
"""Most markers read: some 50 s."""


class History(NamedTuple):
    """The answer.

    Attributes:
        transactions: newest first.
        cut: fewer than were asked for, and older ones may have been; None: there are enough, or
            no more.
    """

    transactions: list[EndedTransaction]
    cut: HistoryCutError | None


async def ended_transactions(
    connector: Connector,
    count_max: int,
    outcome: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> History:
    """The latest transactions that have ended, as far as their markers are kept.

    Args:
        connector: the cluster.
        count_max: most transactions, >= 1.
        outcome: `committed`, `aborted` or `mixed`; None: any.
        progress: called with a line at each step.

    Raises:
        FatalError: txn-markers does not exist.
        DecodeError: a marker is damaged; names its place.
        RetriableError: the broker is away.
    """
    async with closing(HistoryTail(connector, count_max, outcome)) as tail:
        return await tail.read(progress)


class HistoryTail:
    """The latest transactions that have ended; each call of `read` reads the markers since.

    Args:
        connector: the cluster.
        count_max: as in `ended_transactions`.
        outcome: as in `ended_transactions`.
    """

    def __init__(self, connector: Connector, count_max: int, outcome: str | None = None) -> None:
        self._connector = connector
        self._admin = connector.admin()
        self._reader = connector.reader(
            "history", committed=False, timestamps=True, fetching=Fetching.SCANNING
        )
        self._asked = count_max, outcome
        self._walk: _Walk | None = None
        self._found = History([], None)

    async def read(self, progress: Callable[[str], None] = lambda _: None) -> History:
        """The latest transactions now; raises as `ended_transactions`."""
        if self._walk is not None:
            try:
                found = await self._walk.go_on(self._admin)
            except OffsetOutOfRangeError:  # trimmed meanwhile, or the topic was created again
                found = None
            if found is not None:
                self._found = found
                return found
        self._walk = None
        described = await self._admin.describe_topics([TXN_MARKERS])
        require_topics([TXN_MARKERS], described)
        count = described[TXN_MARKERS].partition_count
        places = [TopicPartition(TXN_MARKERS, number) for number in range(count)]
        walk = _Walk(self._connector, self._reader, MarkerHistory(*self._asked))
        self._found = await walk.run(self._admin, places, progress)
        self._walk = walk
        return self._found

    async def close(self) -> None:
        """Releases the connections."""
        await self._reader.close()
        await self._admin.close()


class _Walk:
    def __init__(self, connector: Connector, reader: LogReader, history: MarkerHistory) -> None:
        self._connector = connector
        self._reader = reader
        self._history = history
        self._oldest_ms: dict[TopicPartition, int] = {}
        self._read = 0
        self._read_to: dict[TopicPartition, EndOffset] = {}
        self._last = History([], None)

    async def go_on(self, admin: LogAdmin) -> History | None:
        """Reads the markers since the last call; None: they are so many that `run` reads fewer."""
        ends = dict(await admin.end_offsets(list(self._read_to)))
        if ends == self._read_to:
            return self._last
        ranges = [
            OffsetRange(place, Offset(start), ends[place])
            for place, start in self._read_to.items()
            if place in ends and ends[place] > start
        ]
        if ends.keys() != self._read_to.keys() or not ranges:
            return None
        if sum(one.end - one.start for one in ranges) > FOLLOWED_MAX:
            return None
        await self._take(ranges)
        self._read_to = ends
        needed_ms = self._history.needed_from_ms()
        cut = None if needed_ms is not None else self._last.cut
        self._last = History(self._history.latest(), cut)
        return self._last

    async def run(
        self, admin: LogAdmin, places: list[TopicPartition], progress: Callable[[str], None]
    ) -> History:
        """Reads backwards from the ends."""
        self._last = await self._backwards(admin, places, progress)
        return self._last

    async def _backwards(
        self, admin: LogAdmin, places: list[TopicPartition], progress: Callable[[str], None]
    ) -> History:
        starts = await admin.start_offsets(places)
        left = dict(await admin.end_offsets(places))
        self._read_to = dict(left)
        needed_ms: int | None = None
        step = FIRST_MARKERS
        while ranges := self._ranges(starts, left, needed_ms, step):
            if self._read >= MARKERS_MAX:
                return self._answer(
                    f"reading stops after {self._read} markers", "ask for fewer transactions"
                )
            try:
                await self._take(ranges)
            except OffsetOutOfRangeError:  # trimmed meanwhile: the log begins later
                starts = await admin.start_offsets(places)
                continue
            left |= {read.data: EndOffset(read.start) for read in ranges}
            needed_ms = self._history.needed_from_ms()
            step *= 2
            progress(f"{self._read} markers read")
        trimmed = [place for place in places if starts[place] > 0]
        if needed_ms is not None or not trimmed:
            return History(self._history.latest(), None)
        kept = ", ".join(f"partition {it.partition} from offset {starts[it]}" for it in trimmed)
        return self._answer(
            f"older markers were deleted; kept are {kept}",
            "let workers keep markers for longer: marker_retention_ms",
        )

    def _answer(self, why: str, hint: str) -> History:
        found, asked = self._history.latest(), self._history.count_max
        cut = HistoryCutError(
            f"{len(found)} of {asked} transactions are known",
            detail=why,
            hint=hint,
            topic=TXN_MARKERS,
        )
        return History(found, cut)

    def _ranges(
        self,
        starts: dict[TopicPartition, Offset],
        left: dict[TopicPartition, EndOffset],
        needed_ms: int | None,
        step: int,
    ) -> list[OffsetRange]:
        """What is read next: the markers before those that were read."""
        return [
            OffsetRange(place, Offset(max(starts[place], end - step)), end)
            for place, end in left.items()
            if end > starts[place]
            and (needed_ms is None or self._oldest_ms.get(place, needed_ms) >= needed_ms)
        ]

    async def _take(self, ranges: list[OffsetRange]) -> None:
        async for records in scan(self._reader, ranges):
            self._read += len(records)
            for record in records:
                assert isinstance(record, TimedRecord)
                oldest_ms = self._oldest_ms.get(record.data, record.timestamp_ms)
                self._oldest_ms[record.data] = min(oldest_ms, record.timestamp_ms)
                try:
                    marker = markers.decode(record.key, record.value)
                except DecodeError as error:
                    await pass_over(self._connector, record, error)
                    continue
                if isinstance(marker, Marker):
                    self._history.marker_read(marker, record.timestamp_ms)
