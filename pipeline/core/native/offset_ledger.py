"""What every offset of a range holds, told from batch headers: a pure machine.

*Source*: docs/protocols F2; facts: spark.md 6 (gap ledger).

*Invariants*: the offsets of the range are records (visible or aborted), markers (control batches),
and nothing else that a delete topic explains: visible + aborted + markers + unexplained = end -
start. Compaction leaves unexplained offsets, and so does the loss of records.

Where a batch that compaction has thinned out lies across an end of the range, which of its records
lie inside is not in the header; it then counts as many as fit.

Memory is that of the windows: each holds the counts of one stretch of offsets, for a plot.
"""

from array import array
from typing import NamedTuple

from stilltide.pipeline.core.native.batch_filter import BatchVerdict
from stilltide.schemas.native.batches import Batch, Control
from stilltide.schemas.values import OffsetRange

WINDOWS_MAX = 200
"""Stretches of a partition that are counted apart; a plot shows no more."""

GAPS_MAX = 20
"""Stretches without record or marker that are kept, in the order of their offsets."""


class Gap(NamedTuple):
    """Offsets `[first, end)` of which `missing` hold nothing."""

    first: int
    end: int
    missing: int


class Window(NamedTuple):
    """What was counted in `[first, end)`."""

    first: int
    end: int
    visible: int
    aborted: int
    markers: int


class OffsetLedger:
    """Feeds on the batches of one partition with the verdicts of `BatchFilter`, in their order.

    Args:
        read: the range that is accounted for.

    Attributes:
        visible: records that read_committed shows.
        aborted: records of aborted transactions.
        markers: offsets of control batches.
        commits: control batches that say COMMIT.
        aborts: control batches that say ABORT.
        gaps: the first `GAPS_MAX` stretches with unexplained offsets.
        gap_count: how many there are.
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
        """Offsets that hold neither a record nor a marker."""
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
        held = end - first
        if verdict is not BatchVerdict.CONTROL:
            held = min(held, batch.record_count)
        if held < end - first:
            self._gap(first, end, end - first - held)
        self._count(batch, verdict, first, held)

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

    def _count(self, batch: Batch, verdict: BatchVerdict, first: int, held: int) -> None:
        if verdict is BatchVerdict.CONTROL:
            name = "markers"
            self.commits += batch.control is Control.COMMIT
            self.aborts += batch.control is Control.ABORT
        else:
            name = "aborted" if verdict is BatchVerdict.ABORTED else "visible"
        setattr(self, name, getattr(self, name) + held)
        # The offsets of a thinned-out batch are not known; they are counted from its first on.
        counts, offset = self._counts[name], first - self.read.start
        while held:
            until = (offset // self._width + 1) * self._width
            here = min(held, until - offset)
            counts[offset // self._width] += here
            offset, held = offset + here, held - here

    def _gap(self, first: int, end: int, missing: int) -> None:
        self.gap_count += 1
        if len(self.gaps) < GAPS_MAX:
            self.gaps.append(Gap(first, end, missing))
