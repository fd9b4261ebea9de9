"""Model of the broker's open transactions on a partition, made from its batches (F1).

*Source*: Kafka's `ProducerStateManager` and `ProducerAppendInfo`.

*Invariants*:
- F1 An entry is made for each ABORT that ends an open transaction, with the last stable offset of
  that moment: the first offset of the earliest other open transaction, else after the marker.
- A marker without data before it makes no entry, and neither does a repeated marker.
- A transaction begins with its first batch here, also when compaction has left that one empty; in
  a log that was compacted or trimmed this is the first batch that is left.
"""

from collections.abc import Iterator
from typing import NamedTuple

from stilltide.schemas.native.transactions import Batch, Control
from stilltide.schemas.values import EndOffset, Offset


class AbortedEntry(NamedTuple):
    """A row of the transaction index (F1).

    Attributes:
        producer_id: id of the transaction's producer.
        first_offset: first offset of the transaction's first batch.
        last_offset: offset of the transaction's ABORT marker.
        last_stable_offset: last stable offset after the marker: no transaction that was open then
            began below this offset.
    """

    producer_id: int
    first_offset: Offset
    last_offset: Offset
    last_stable_offset: EndOffset


class OpenTransaction(NamedTuple):
    """A transaction without marker so far."""

    producer_id: int
    first_offset: Offset


class OpenTransactions:
    """Takes all batches of a partition, read_uncommitted, from the log start on."""

    def __init__(self) -> None:
        # In the order of their first offsets, since batches ascend.
        self._first_offsets: dict[int, int] = {}

    def __iter__(self) -> Iterator[OpenTransaction]:
        """The open transactions, earliest first."""
        return (OpenTransaction(one, Offset(first)) for one, first in self._first_offsets.items())

    @property
    def first_offset(self) -> Offset | None:
        """The first offset of the earliest open transaction; None when none is open."""
        return Offset(next(iter(self._first_offsets.values()))) if self._first_offsets else None

    def batch_read(self, batch: Batch) -> AbortedEntry | None:
        """Takes the next batch; returns the row of a transaction that it aborts."""
        if batch.control is None:
            if batch.is_transactional:
                self._first_offsets.setdefault(batch.producer_id, batch.base_offset)
            return None
        if batch.control is Control.OTHER:
            return None
        first_offset = self._first_offsets.pop(batch.producer_id, None)
        if first_offset is None or batch.control is Control.COMMIT:
            return None
        stable = self.first_offset
        return AbortedEntry(
            batch.producer_id,
            Offset(first_offset),
            batch.last_offset,
            EndOffset(batch.last_offset + 1 if stable is None else stable),
        )
