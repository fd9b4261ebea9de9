"""A cache of stretches of the log, so that groups with near positions share a read.

*Source*: docs/protocols H3: records that a bucket does not determine are read from the log.
*Invariants*: an answer equals what a read would find, because decided records do not change. The
number and size of stretches are bounded; the least recently used stretch is dropped first.
"""

from bisect import bisect_left
from dataclasses import dataclass

from stilltide.pipeline.core.groups.frontier import LogRead, ReadLog, VisibleRecord
from stilltide.schemas.values import EndOffset, Offset

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
        found = [one for one in self._stretches if one.first <= wanted.first <= one.read_to]
        if not found:
            return None
        stretch = max(found, key=lambda one: one.read_to)
        self._stretches.remove(stretch)
        self._stretches.append(stretch)
        return stretch


def _offset(record: VisibleRecord) -> int:
    return record.offset
