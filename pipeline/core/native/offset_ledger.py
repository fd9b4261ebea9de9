"""Accounts for every offset of a range from batch headers: a pure machine.

*Source*: docs/protocols F2.

*Invariants*: an offset holds a record (visible or aborted), a marker (control batch), or is
unexplained: visible + aborted + markers + unexplained = end - start. A topic that is not compacted
has no unexplained offsets unless records were lost.

If compaction has removed records of a batch that crosses an end of the range, the header does not
show which records are inside; as many as fit are counted.

Memory is that of the windows: each holds the counts of one stretch of offsets, for a plot.
"""

from array import array
from typing import NamedTuple

from stilltide.pipeline.core.native.batch_filter import BatchVerdict
from stilltide.schemas.native.transactions import Batch, Control
from stilltide.schemas.values import OffsetRange

WINDOWS_MAX = 200
"""Most stretches of a partition that are counted separately, enough for a plot."""

GAPS_MAX = 20
"""Most stretches with unexplained offsets that are kept: those with the lowest offsets."""


class Gap(NamedTuple):
    """A stretch `[first, end)` in which `missing` offsets are unexplained."""

    first: int
    end: int
    missing: int


class Window(NamedTuple):
    """The counts of the stretch `[first, end)`."""

    first: int
    end: int
    visible: int
    aborted: int
    markers: int


class OffsetLedger:
    """Takes the batches of one partition and the verdicts of `BatchFilter`, in offset order.

    Args:
        read: offsets that are accounted for.

    Attributes:
        visible: number of records that read_committed shows.
        aborted: number of records of aborted transactions.
        markers: number of offsets of control batches.
        commits: number of COMMIT control batches.
        aborts: number of ABORT control batches.
        gaps: first `GAPS_MAX` stretches with unexplained offsets.
        gap_count: number of all stretches with unexplained offsets.
    """

    def __init__(self, read: OffsetRange) -> None:
        self.read = read
        self.visible = self.aborted = self.markers = 0
        self.commits = self.aborts = 0
        self.gaps: list[Gap] = []
        self.gap_count = 0
        self._next = int(read.start)
        self._width = max(1, -(-(read.end - read.start) // WINDOWS_MAX))
        count = -(-(read.end - read.start) // self._width)
        self._counts = {name: array("q", [0] * count) for name in ("visible", "aborted", "markers")}

    @property
    def unexplained(self) -> int:
        """How many offsets hold neither a record nor a marker."""
        read = self.read
        return read.end - read.start - self.visible - self.aborted - self.markers

    def batch_read(self, batch: Batch, verdict: BatchVerdict) -> None:
        """Takes the next batch."""
        first, end = max(batch.base_offset, self._next), min(batch.last_offset + 1, self.read.end)
        if first >= end:
            return
        if first > self._next:
            self._gap(self._next, first, first - self._next)
        self._next = end
        count = end - first
        if verdict is not BatchVerdict.CONTROL:
            count = min(count, batch.record_count)
        if count < end - first:
            self._gap(first, end, end - first - count)
        self._count(batch, verdict, first, count)

    def finish(self) -> None:
        """No batch follows below the end of the range."""
        if self._next < self.read.end:
            self._gap(self._next, self.read.end, self.read.end - self._next)
            self._next = self.read.end

    def windows(self) -> list[Window]:
        """The counts along the range."""
        start, end, width = self.read.start, self.read.end, self._width
        columns = zip(*self._counts.values(), strict=True)
        return [
            Window(first, min(first + width, end), *counts)
            for first, counts in zip(range(start, end, width), columns, strict=True)
        ]

    def _count(self, batch: Batch, verdict: BatchVerdict, first: int, left: int) -> None:
        if verdict is BatchVerdict.CONTROL:
            name = "markers"
            self.commits += batch.control is Control.COMMIT
            self.aborts += batch.control is Control.ABORT
        else:
            name = "aborted" if verdict is BatchVerdict.ABORTED else "visible"
        setattr(self, name, getattr(self, name) + left)
        # The header does not show which offsets compaction left: count from the first one on.
        counts, offset = self._counts[name], first - self.read.start
        while left:
            until = (offset // self._width + 1) * self._width
            here = min(left, until - offset)
            counts[offset // self._width] += here
            offset, left = offset + here, left - here

    def _gap(self, first: int, end: int, missing: int) -> None:
        self.gap_count += 1
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append(Gap(first, end, missing))
