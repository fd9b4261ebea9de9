"""How many records of a group are unpublished, and how many would be read again, at bounded cost.

*Source*: docs/protocols H3, I6, I7. *Invariants*: the number of records read again is never lower
than what `read_again` counts for the same claims; near the group's offset every record is read,
further on the index gives an upper bound. Stretches of the log that were read are kept, as decided
records do not change: their number and size are bounded, and the least recently used one is dropped
first.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stilltide.pipeline.core.groups.frontier import (
    WALK_MAX,
    LogRead,
    LogView,
    Reading,
    ReadLog,
    VisibleRecord,
    read_again,
)
from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Claims
from stilltide.schemas.values import EndOffset, Offset


def read_again_bounded(
    view: LogView, indexes: Sequence[OffsetIndex], claimed: Claims, offset: Offset
) -> Reading[int]:
    """The most claimed records that are at or above an offset here, or will be copied here.

    The number is exact for the next `WALK_MAX` offsets of the log, which are read.
    """
    first = max(view.log_start, offset)
    near = EndOffset(max(first, min(view.decided_end, first + WALK_MAX)))
    walked = view._replace(decided_end=near)
    count = yield from read_again(walked, indexes, claimed, Offset(first))
    beyond = read_again_at_most(view, indexes, claimed, Offset(near))
    # In a bucket that was read in part, the index may count records a second time.
    return min(count + beyond, read_again_at_most(view, indexes, claimed, Offset(first)))


def read_again_at_most(
    view: LogView, indexes: Iterable[OffsetIndex], claimed: Claims, offset: Offset
) -> int:
    """The bound of `read_again_bounded` by the index alone, at one look-up for each link.

    Every claimed offset counts, including those of aborted records, control records and copies.
    """
    position = max(view.log_start, offset)
    below = intervals.below(position)
    here = intervals.size(intervals.minus(claimed.get(view.incarnation, ()), below))
    coming = 0
    for index in indexes:
        copied, left = _of_link(view, index, claimed, position)
        here += copied
        coming += left
    return min(here, max(0, view.decided_end - position)) + coming


def _of_link(view: LogView, index: OffsetIndex, claimed: Claims, position: int) -> tuple[int, int]:
    """Number of one source's claimed records copied at or above the position, and not copied."""
    frontier = index.frontier(view.incarnation.topic, position)
    theirs = {one: held for one, held in claimed.items() if one.cluster == index.source}
    above = claims.minus(theirs, frontier.claimed)
    newest, coming = index.newest, above
    if newest is not None:
        above = claims.minus(above, newest.holes)
        stretch = {index.incarnation(newest): intervals.below(newest.source_to)}
        coming = claims.minus(above, stretch)
    left = _size(coming)
    copied = _size(above) - left
    bucket = frontier.undecided
    if bucket is not None:
        at_most = bucket.target_to - position
        within = intervals.interval(bucket.source_from, bucket.source_to)
        outside = claims.minus(above, {index.incarnation(bucket): within})
        copied -= max(0, _size(above) - _size(outside) - at_most)
    return copied, left


def _size(by_incarnation: Claims) -> int:
    return sum(intervals.size(one) for one in by_incarnation.values())


STRETCHES_MAX = 4
RECORDS_MAX = 20_000
"""Most records of a stretch; beyond, records below the wanted offset are dropped."""


@dataclass(slots=True, eq=False)
class _Stretch:
    first: Offset
    read_to: EndOffset
    records: list[VisibleRecord]

    def answer(self, wanted: ReadLog) -> LogRead:
        """The records of the stretch that are wanted."""
        low = bisect_left(self.records, wanted.first, key=_offset)
        high = bisect_left(self.records, wanted.end, lo=low, key=_offset)
        return LogRead(self.records[low:high], EndOffset(min(wanted.end, self.read_to)))

    def grow(self, read: LogRead, needed_from: Offset) -> None:
        """Appends records that were read; drops those below `needed_from` if there are too many."""
        self.records += read.records
        self.read_to = max(self.read_to, read.read_to)
        if len(self.records) > RECORDS_MAX:
            del self.records[: bisect_left(self.records, needed_from, key=_offset)]
            self.first = needed_from


class LogWindow:
    """The cached stretches of one incarnation of a data partition; empty at first."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []  # the one used last at the end

    def missing(self, wanted: ReadLog) -> ReadLog | None:
        """The part of a wanted read that is not cached; None: all is cached."""
        stretch = self._covering(wanted)
        if stretch is None:
            return wanted
        if stretch.read_to >= wanted.end:
            return None
        return ReadLog(Offset(stretch.read_to), wanted.end)

    def answered(self, asked: ReadLog, wanted: ReadLog, read: LogRead) -> LogRead:
        """Caches the answer to the missing part; returns the answer to the wanted read."""
        stretch = self._covering(wanted)
        if stretch is None:
            stretch = _Stretch(asked.first, EndOffset(asked.first), [])
            self._stretches = [*self._stretches[1 - STRETCHES_MAX :], stretch]
        if asked.first == stretch.read_to:
            stretch.grow(read, wanted.first)
        return self.answer(wanted)

    def answer(self, wanted: ReadLog) -> LogRead:
        """The answer to a wanted read, as far as it is cached."""
        stretch = self._covering(wanted)
        if stretch is None:
            return LogRead([], EndOffset(wanted.first))
        return stretch.answer(wanted)

    def _covering(self, wanted: ReadLog) -> _Stretch | None:
        """The stretch that holds the first wanted offset, or ends there; of several the longest."""
        covering = [one for one in self._stretches if one.first <= wanted.first <= one.read_to]
        if not covering:
            return None
        stretch = max(covering, key=lambda one: one.read_to)
        self._stretches.remove(stretch)
        self._stretches.append(stretch)
        return stretch


def _offset(record: VisibleRecord) -> int:
    return record.offset
