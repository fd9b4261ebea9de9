"""Disjoint ranges of aborted batches, searched by offset.

*Source*: docs/protocols F3.

*Invariants*: ranges `[first, end)` ascend and do not overlap; every record in one is aborted, and
so needs no producer to be recognised.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from stilltide.pipeline.core.native.batch_filter import BatchVerdict
from stilltide.schemas.native.aborted_index import AbortedRange
from stilltide.schemas.native.batches import Batch
from stilltide.schemas.values import EndOffset, Offset


class AbortedRanges:
    """Ranges of one partition, in columns of 64-bit integers: 16 bytes for each.

    Args:
        ranges: ascending, disjoint.

    Attributes:
        firsts: first offset of each, 64-bit integers; to be read only.
        ends: end offset of each, likewise.
    """

    def __init__(self, ranges: Iterable[AbortedRange] = ()) -> None:
        self.firsts = array("q")
        self.ends = array("q")
        for one in ranges:
            self.append(one)

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[AbortedRange]:
        pairs = zip(self.firsts, self.ends, strict=True)
        return (AbortedRange(Offset(first), EndOffset(end)) for first, end in pairs)

    def __contains__(self, offset: int) -> bool:
        """Whether a record at `offset` is aborted; O(log n)."""
        index = bisect_right(self.firsts, offset) - 1
        return index >= 0 and offset < self.ends[index]

    def append(self, one: AbortedRange) -> None:
        """One more, behind the others; may touch the last one."""
        assert one.first < one.end, "a range is not empty"
        assert not self.ends or one.first >= self.ends[-1], "ranges ascend"
        self.firsts.append(one.first)
        self.ends.append(one.end)


class RangeBuilder:
    """Joins the aborted batches of a partition to ranges, as long as no visible one lies between.

    Control batches and gaps may lie in a range: no record is there for anybody. Holds one range.

    Attributes:
        open: the last range, which the next batch may make longer.
    """

    __slots__ = ("open",)

    def __init__(self, last: AbortedRange | None = None) -> None:
        self.open = last

    def batch_read(self, batch: Batch, verdict: BatchVerdict, start: Offset) -> AbortedRange | None:
        """Takes the next batch; returns the range that it ends.

        Args:
            batch: behind those before.
            verdict: of the filter.
            start: records below it were not asked for, and are in no range.
        """
        if verdict is BatchVerdict.ABORTED:
            first, end = max(batch.base_offset, start), EndOffset(batch.last_offset + 1)
            if self.open is not None:
                first = self.open.first
            if first < end:
                self.open = AbortedRange(first, end)
            return None
        if verdict is BatchVerdict.VISIBLE and batch.record_count:
            ended, self.open = self.open, None
            return ended
        return None
