"""Stretches of the log that were read lately, so that groups near each other share a read.

*Source*: docs/protocols H3: what a bucket does not say is read from the log.
*Invariants*: what is answered is what a read would find: decided records do not change. A bounded
number of bounded stretches, the one used longest ago goes first.
"""

from bisect import bisect_left
from dataclasses import dataclass

from stilltide.pipeline.core.groups.frontier import LogRead, ReadLog, VisibleRecord
from stilltide.schemas.values import EndOffset, Offset

STRETCHES_MAX = 4
RECORDS_MAX = 20_000
"""Records of a stretch; one that grows beyond loses what is not wanted at that moment."""


@dataclass(slots=True, eq=False)
class _Stretch:
    first: Offset
    read_to: EndOffset
    records: list[VisibleRecord]

    def answer(self, wanted: ReadLog) -> LogRead:
        """The part of it that is wanted."""
        low = bisect_left(self.records, wanted.first, key=_offset)
        high = bisect_left(self.records, wanted.end, lo=low, key=_offset)
        return LogRead(self.records[low:high], EndOffset(min(wanted.end, self.read_to)))

    def grow(self, read: LogRead, needed_from: Offset) -> None:
        """Takes up what was read behind it; gives up what lies below `needed_from` if too long."""
        self.records += read.records
        self.read_to = max(self.read_to, read.read_to)
        if len(self.records) > RECORDS_MAX:
            del self.records[: bisect_left(self.records, needed_from, key=_offset)]
            self.first = needed_from


class LogWindow:
    """What is known of one incarnation of a data partition; empty at first."""

    def __init__(self) -> None:
        self._stretches: list[_Stretch] = []  # the one used last at the end

    def missing(self, wanted: ReadLog) -> ReadLog | None:
        """What is left to read to answer a read; None: nothing."""
        stretch = self._covering(wanted)
        if stretch is None:
            return wanted
        if stretch.read_to >= wanted.end:
            return None
        return ReadLog(Offset(stretch.read_to), wanted.end)

    def answered(self, asked: ReadLog, wanted: ReadLog, read: LogRead) -> LogRead:
        """Takes up the answer to what was missing; returns the whole answer."""
        stretch = self._covering(wanted)
        if stretch is None:
            stretch = _Stretch(asked.first, EndOffset(asked.first), [])
            self._stretches = [*self._stretches[1 - STRETCHES_MAX :], stretch]
        if asked.first == stretch.read_to:
            stretch.grow(read, wanted.first)
        return self.answer(wanted)

    def answer(self, wanted: ReadLog) -> LogRead:
        """The answer to a read of which nothing is missing, or as far as could be read."""
        stretch = self._covering(wanted)
        if stretch is None:
            return LogRead([], EndOffset(wanted.first))
        return stretch.answer(wanted)

    def _covering(self, wanted: ReadLog) -> _Stretch | None:
        """The stretch that holds the first offset wanted, or ends there; of several the longest."""
        found = [one for one in self._stretches if one.first <= wanted.first <= one.read_to]
        if not found:
            return None
        stretch = max(found, key=lambda one: one.read_to)
        self._stretches.remove(stretch)
        self._stretches.append(stretch)
        return stretch


def _offset(record: VisibleRecord) -> int:
    return record.offset
