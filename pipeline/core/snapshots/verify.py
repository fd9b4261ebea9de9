"""Compares a snapshot with the markers that are still in the log.

*Source*: docs/protocols D4, E2, E4.
*Invariants*: a record or id without a marker is counted as unchecked, never as right. The number of
differences kept is bounded, the counts are complete.

A record below M of an aborted transaction must be hidden, whatever the marker's offset: every
transaction with a record below M had ended before the snapshot was taken, and its marker was read.
"""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId


class DifferenceKind(StrEnum):
    """How a snapshot and the markers differ."""

    SHOWN_ABORTED = "shown-aborted"
    """The snapshot shows a record whose transaction has aborted."""
    HIDDEN_COMMITTED = "hidden-committed"
    """The snapshot hides a record whose transaction has committed."""
    ID_MISSING = "id-missing"
    """The snapshot has absorbed the marker of an abort, and would not hide a late record."""
    ID_COMMITTED = "id-committed"
    """The snapshot's aborted set holds a transaction that has committed."""
    UNUSABLE = "unusable"
    """The snapshot cannot be used: a part is missing, or it is of another topic or another log."""


class Difference(NamedTuple):
    """Evidence of one difference.

    Attributes:
        kind: kind of the difference.
        data: the data partition.
        txn: the transaction; None if the snapshot is unusable.
        offset: offset of the record, or else of the marker; None if the snapshot is unusable.
        detail: why the snapshot is unusable; None for other kinds.
    """

    kind: DifferenceKind
    data: TopicPartition
    txn: TxnId | None
    offset: Offset | None
    detail: str | None = None


class SnapshotCheck:
    """The check of one data partition's snapshot: first markers, then records.

    Args:
        data: the data partition.
        snapshot: the data partition's snapshot.
        absorbed_to: offset below which the snapshot has absorbed every marker.
        evidence_max: most differences kept of each kind.

    Attributes:
        counts: number of differences of each kind.
        differences: first differences of each kind.
        markers: number of markers that were compared.
        records_checked: coordinated records that were compared with a marker.
        records_unchecked: coordinated records without a marker.
    """

    def __init__(
        self,
        data: TopicPartition,
        snapshot: Snapshot,
        absorbed_to: EndOffset,
        *,
        evidence_max: int,
    ) -> None:
        self.counts: Counter[DifferenceKind] = Counter()
        self.differences: list[Difference] = []
        self.markers = self.records_checked = self.records_unchecked = 0
        self._data = data
        self._snapshot = snapshot
        self._absorbed_to = absorbed_to
        self._evidence_max = evidence_max
        self._outcomes: dict[bytes, tuple[bool, int]] = {}
        self._set_checked = 0

    @property
    def ids_unchecked(self) -> int:
        """How many ids of the aborted set have no marker any more."""
        return len(self._snapshot.aborted) - self._set_checked

    def marker_read(self, offset: Offset, marker: Marker) -> None:
        """Takes the latest marker of a transaction."""
        self.markers += 1
        aborted, txn = self._snapshot.aborted, marker.txn
        is_aborted = aborted.holds(*txn)
        self._set_checked += is_aborted
        end_offset = -1
        if marker.committed:
            same = marker.topic_id == self._snapshot.end.topic_id
            end_offset = marker.end_offset if same and marker.end_offset is not None else -1
            if is_aborted:
                self._differs(DifferenceKind.ID_COMMITTED, txn, offset)
        elif offset < self._absorbed_to and not aborted.hides(*txn):
            self._differs(DifferenceKind.ID_MISSING, txn, offset)
        self._outcomes[txn.to_bytes()] = marker.committed, end_offset

    def records_read(self, records: Iterable[tuple[Offset, bytes]]) -> None:
        """Takes records below M, each with the 16 bytes of its transaction; about 1 us for each."""
        outcome_of, visible = self._outcomes.get, self._snapshot.visible
        for offset, data in records:
            outcome = outcome_of(data)
            if outcome is None:
                self.records_unchecked += 1
                continue
            self.records_checked += 1
            committed, end_offset = outcome
            txn = TxnId.from_bytes(data)
            if visible(offset, *txn) is committed:
                continue
            if not committed:
                self._differs(DifferenceKind.SHOWN_ABORTED, txn, offset)
            elif offset < end_offset:  # a late record is hidden in either case (D1)
                self._differs(DifferenceKind.HIDDEN_COMMITTED, txn, offset)

    def _differs(self, kind: DifferenceKind, txn: TxnId, offset: Offset) -> None:
        self.counts[kind] += 1
        if self.counts[kind] <= self._evidence_max:
            self.differences.append(Difference(kind, self._data, txn, offset))
