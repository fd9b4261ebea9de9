"""Which batches of one fetch at read_committed are aborted, and the ranges of aborted batches.

*Source*: docs/protocols F2, F3; Kafka's read_committed consumer, class `CompletedFetch`.

*Invariants*:
- F2 A transactional batch is aborted iff the list has an entry of its producer that begins at or
  before the last offset of a batch read so far, and no ABORT of that producer was read since.
- F2 The position passes every batch, including empty, control and aborted ones.
- Only an ABORT ends an entry. A COMMIT does not, nor does a control batch that the log cleaner has
  emptied; producer epochs are ignored (a marker may have the next epoch, KIP-890).
- F3 Ranges `[first, end)` ascend and do not overlap; every record in a range is aborted, whatever
  its producer.

The filter's state is that of one fetch response. A transaction whose marker comes later is listed
in the next response again, so nothing is carried over.

*Refuses*: batches that do not ascend.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from enum import Enum

from stilltide.schemas.native.transactions import NO_PRODUCER_ID, AbortedTransaction, Batch, Control
from stilltide.schemas.values import EndOffset, Offset, Range


class BatchVerdict(Enum):
    """How a reader at read_committed treats a batch.

    Attributes:
        VISIBLE: the application gets the batch's records at or above the start of the fetch, of
            which none may be left.
        BELOW: the whole batch is below the start of the fetch.
        ABORTED: no record of the batch is visible.
        CONTROL: the batch is a control batch, without records.
    """

    VISIBLE = "visible"
    BELOW = "below"
    ABORTED = "aborted"
    CONTROL = "control"


class BatchFilter:
    """Takes the batches of one fetch response in order; about half a microsecond for each.

    Args:
        start: offset that was asked for; the first batch may begin below it.
        aborted: aborted transactions of the response, in any order; may list unneeded ones.

    Attributes:
        start: offset of the first record that the application may get.
        position: offset at which the next fetch begins.
    """

    __slots__ = ("_aborted_producers", "_pending", "position", "start")

    def __init__(self, start: Offset, aborted: Iterable[AbortedTransaction]) -> None:
        self.start = start
        self.position = start
        self._pending = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True
        )
        self._aborted_producers: set[int] = set()

    def batch_read(self, batch: Batch) -> BatchVerdict:
        """Takes the next batch; returns the verdict about it (F2)."""
        base_offset, last_offset, producer_id, is_transactional, control, _ = batch
        assert base_offset >= self.position or self.position == self.start, "batches ascend"
        if last_offset >= self.position:
            self.position = Offset(last_offset + 1)
        if producer_id != NO_PRODUCER_ID:
            self._begin_up_to(last_offset)
        if control is not None:
            if control is Control.ABORT:
                self._aborted_producers.discard(producer_id)
            return BatchVerdict.CONTROL
        if is_transactional and producer_id in self._aborted_producers:
            return BatchVerdict.ABORTED
        return BatchVerdict.VISIBLE if last_offset >= self.start else BatchVerdict.BELOW

    def _begin_up_to(self, last_offset: int) -> None:
        """Begins the entries whose first offset is at or before `last_offset`.

        The last offset is compared and not the base offset, because compaction may have removed
        the first records of the batch in which an entry begins.
        """
        pending = self._pending
        while pending and pending[-1][0] <= last_offset:
            self._aborted_producers.add(pending.pop()[1])


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
        for range_ in ranges:
            self.append(range_)

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[Range]:
        pairs = zip(self.firsts, self.ends, strict=True)
        return (Range(Offset(first), EndOffset(end)) for first, end in pairs)

    def __contains__(self, offset: int) -> bool:
        """Whether a record at `offset` is aborted; O(log n)."""
        index = bisect_right(self.firsts, offset) - 1
        return index >= 0 and offset < self.ends[index]

    def append(self, range_: Range) -> None:
        """Adds a range after the others; the range may touch the last one."""
        assert range_.first < range_.end, "a range is not empty"
        assert not self.ends or range_.first >= self.ends[-1], "ranges ascend"
        self.firsts.append(range_.first)
        self.ends.append(range_.end)


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
