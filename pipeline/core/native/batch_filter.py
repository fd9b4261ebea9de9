"""Which batches of one fetch at read_committed are aborted: a pure machine.

*Source*: docs/protocols F2; Kafka's read_committed consumer, class `CompletedFetch`.

*Invariants*:
- F2 A transactional batch is aborted iff the list has an entry of its producer that begins at or
  before the last offset of a batch read so far, and no ABORT of that producer was read since.
- F2 The position passes every batch, including empty, control and aborted ones.
- Only an ABORT ends an entry. A COMMIT does not, nor does a control batch that the log cleaner has
  emptied; producer epochs are ignored (a marker may have the next epoch, KIP-890).

The filter's state is that of one fetch response. A transaction whose marker comes later is listed
in the next response again, so nothing is carried over.

*Refuses*: batches that do not ascend.
"""

from collections.abc import Iterable
from enum import Enum

from stilltide.schemas.native.transactions import NO_PRODUCER_ID, AbortedTransaction, Batch, Control
from stilltide.schemas.values import Offset


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
        """Takes the next batch; returns the verdict about it."""
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
