"""Disjoint ranges of aborted batches, searched by offset.

*Source*: docs/protocols F3.

*Invariants*: ranges `[first, end)` ascend and do not overlap; every record in a range is aborted,
whatever its producer.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

from stilltide.pipeline.core.native.batch_filter import BatchVerdict
from stilltide.schemas.native.transactions import Batch
from stilltide.schemas.values import EndOffset, Offset, Range


class AbortedRanges:
    """Aborted ranges of one partition, in two columns of 64-bit integers: 16 bytes for each range.

    Args:
        ranges: disjoint ranges, ascending.

    Attributes:
        firsts: first offset of each range; read only.
        ends: end offset of each range; read only.
    """

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.firsts = array("q")
        self.ends = array("q")
        for one in ranges:
            self.append(one)

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Range]:
        pairs = zip(self.firsts, self.ends, strict=True)
        return (Range(Offset(first), EndOffset(end)) for first, end in pairs)

    def __contains__(self, offset: int) -> bool:
        """Whether a record at `offset` is aborted; O(log n)."""
        index = bisect_right(self.firsts, offset) - 1
        return index >= 0 and offset < self.ends[index]

    def append(self, one: Range) -> None:
        """Adds a range after the others; the range may touch the last one."""
        assert one.first < one.end, "a range is not empty"
        assert not self.ends or one.first >= self.ends[-1], "ranges ascend"
        self.firsts.append(one.first)
        self.ends.append(one.end)


class RangeBuilder:
    """Joins the aborted batches of a partition to ranges until a visible batch comes between.

    Control batches and gaps may be in a range, because they hold no record for a reader. Only one
    range is held in memory.

    Attributes:
        open: last range, which the next batch may make longer.
    """

    __slots__ = ("open",)

    def __init__(self, last: Range | None = None) -> None:
        self.open = last

    def batch_read(self, batch: Batch, verdict: BatchVerdict, start: Offset) -> Range | None:
        """Takes the next batch; returns the range that the batch ends, or None.

        Args:
            batch: next batch, in offset order.
            verdict: the filter's verdict about the batch.
            start: offset that was asked for; records below it are in no range.
        """
        if verdict is BatchVerdict.ABORTED:
            first, end = max(batch.base_offset, start), EndOffset(batch.last_offset + 1)
            if self.open is not None:
                first = self.open.first
            if first < end:
                self.open = Range(first, end)
            return None
        if verdict is BatchVerdict.VISIBLE and batch.record_count:
            ended, self.open = self.open, None
            return ended
        return None
