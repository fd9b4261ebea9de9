"""Does a snapshot say what the markers say that are still there?

*Source*: docs/protocols D4, E2, E4.
*Invariants*: only what follows from a marker that is there is compared; the rest is counted as
unchecked, never as right. Evidence is bounded, counts are not.

A record below M of an aborted transaction must be hidden, wherever the marker lies: whoever wrote
below M had ended before the snapshot was taken, and its marker had been read.
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
    """It shows a record whose transaction has aborted."""
    HIDDEN_COMMITTED = "hidden-committed"
    """It hides a record whose transaction has committed."""
    ID_MISSING = "id-missing"
    """It has absorbed the marker of an abort, and would not hide a late record."""
    ID_COMMITTED = "id-committed"
    """Its aborted set holds a transaction that has committed."""
    UNUSABLE = "unusable"
    """It cannot be used at all: a part is missing, or it is of another topic, or of another log."""


class Difference(NamedTuple):
    """Evidence of one difference.

    Attributes:
        kind: what it is.
        data: where.
        txn: the transaction; None of a snapshot that is unusable.
        offset: of the record concerned, or else of the marker; None likewise.
        detail: why a snapshot is unusable.
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
        snapshot: its snapshot.
        absorbed_to: the snapshot stands for every marker below.
        evidence_max: differences kept of each kind.

    Attributes:
        counts: how many differences of each kind there are.
        differences: the first of each kind.
        markers: how many markers were compared.
        records_checked: coordinated records whose outcome a marker tells.
        records_unchecked: those of whom only the snapshot tells.
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
        """Ids of the aborted set whose marker is not there any more."""
        return len(self._snapshot.aborted) - self._set_checked

    def marker_read(self, offset: Offset, marker: Marker) -> None:
        """Takes the latest marker of a transaction."""
        self.markers += 1
        aborted, txn = self._snapshot.aborted, marker.txn
        held = aborted.holds(*txn)
        self._set_checked += held
        end_offset = -1
        if marker.committed:
            same = marker.topic_id == self._snapshot.end.topic_id
            end_offset = marker.end_offset if same and marker.end_offset is not None else -1
            if held:
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
