"""Which batches of one fetch at read_committed are aborted: a pure machine.

*Source*: docs/protocols F2 (seed 004); Kafka's `CompletedFetch`.

*Invariants*:
- F2 A transactional batch is aborted iff an entry of the list that began at or before the last
  offset of a batch read so far names its producer, and no ABORT of that producer came since.
- F2 The position passes every batch, also those that are empty, control or aborted.
- Only an ABORT ends an entry. A COMMIT does not, nor does a control batch that the cleaner has
  emptied; producer epochs mean nothing (a marker may have the next one, KIP-890).

Its state is that of one answer of a broker. A transaction whose marker lies beyond it is named
again in the next answer, so nothing is carried over.

*Refuses*: batches that do not ascend.
"""

from collections.abc import Iterable
from enum import Enum

from stilltide.schemas.native.batches import NO_PRODUCER_ID, AbortedTransaction, Batch, Control
from stilltide.schemas.values import Offset


class BatchVerdict(Enum):
    """What becomes of a batch.

    Attributes:
        VISIBLE: those of its records that lie at or above the start of the fetch are for the
            application; there may be none left.
        BELOW: it lies below the start of the fetch as a whole.
        ABORTED: none of its records is for an application.
        CONTROL: it has none.
    """

    VISIBLE = "visible"
    BELOW = "below"
    ABORTED = "aborted"
    CONTROL = "control"


class BatchFilter:
    """Feeds on the batches of one answer, in their order; about half a microsecond for each.

    Args:
        start: the offset that was asked for; the first batch may begin below it.
        aborted: the list that came with the batches, in any order; may name more than is needed.

    Attributes:
        start: records below it are not for the application.
        position: where the next fetch begins.
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
        """Takes the next batch and decides about it."""
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
        """Takes up the entries that begin at or before `last_offset`.

        The last offset and not the base: compaction may have taken the first records of the batch
        that an entry begins with.
        """
        pending = self._pending
        while pending and pending[-1][0] <= last_offset:
            self._aborted_producers.add(pending.pop()[1])
