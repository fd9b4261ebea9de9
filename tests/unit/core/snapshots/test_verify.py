from typing import NamedTuple

import pytest

from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.core.snapshots.verify import DifferenceKind, SnapshotCheck
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

DATA = TopicPartition("orders", 0)
TOPIC_ID = b"\1" * 16
M = 100
K = EndOffset(50)
"""Markers below are absorbed."""
HELD, BELOW_FLOOR, FREE = TxnId(0, 60), TxnId(0, 9), TxnId(0, 70)


def check(*, evidence_max: int = 10) -> SnapshotCheck:
    """Of a snapshot that holds one id and has one floor."""
    end = SnapshotEnd(TOPIC_ID, EndOffset(M), K, 1, (), {0: [60]}, {0: 10}, EndOffset(0), ())
    aborted = AbortedSet(end.floors)
    aborted.update(end.unsealed)
    return SnapshotCheck(DATA, Snapshot(end, aborted), K, evidence_max=evidence_max)


class Case(NamedTuple):
    """A transaction's marker, the marker's offset, a record's offset, the expected difference."""

    txn: TxnId
    committed: bool
    marker_offset: int
    record_offset: int | None
    kinds: list[DifferenceKind]


CASES = {
    "aborted and held": Case(HELD, False, 1, 20, []),
    "aborted and below a floor": Case(BELOW_FLOOR, False, 1, 20, []),
    "aborted and shown": Case(FREE, False, 60, 20, [DifferenceKind.SHOWN_ABORTED]),
    "aborted, not absorbed, without records": Case(FREE, False, 60, None, []),
    "aborted, absorbed and unknown": Case(FREE, False, 49, None, [DifferenceKind.ID_MISSING]),
    "committed and shown": Case(FREE, True, 1, 20, []),
    "committed and held": Case(
        HELD, True, 1, 20, [DifferenceKind.ID_COMMITTED, DifferenceKind.HIDDEN_COMMITTED]
    ),
    "committed and held, without records": Case(HELD, True, 1, None, [DifferenceKind.ID_COMMITTED]),
    "committed and below a floor": Case(
        BELOW_FLOOR, True, 1, 20, [DifferenceKind.HIDDEN_COMMITTED]
    ),
    "committed below a floor, late": Case(BELOW_FLOOR, True, 1, 90, []),
}


@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_is_compared_with_the_markers_that_are_there(name: str):
    """D4, E2: records below M by their transaction's marker, and the set by markers below K."""
    case, made = CASES[name], check()
    end = EndOffset(80)
    marker = Marker(DATA, case.txn, case.committed, EndOffset(0), end, 1, TOPIC_ID)
    made.marker_read(Offset(case.marker_offset), marker)
    if case.record_offset is not None:
        made.records_read([(Offset(case.record_offset), case.txn.to_bytes())])
    assert [it.kind for it in made.differences] == case.kinds
    assert made.counts.total() == len(case.kinds)
    assert {(it.data, it.txn) for it in made.differences} <= {(DATA, case.txn)}


def test_what_no_marker_tells_is_unchecked_and_never_right():
    """Records and ids whose markers were trimmed are counted."""
    made = check()
    made.records_read([(Offset(1), HELD.to_bytes()), (Offset(2), FREE.to_bytes())])
    assert (made.records_checked, made.records_unchecked) == (0, 2)
    assert made.ids_unchecked == 1
    aborted = Marker(DATA, HELD, False, EndOffset(0), None, 0, TOPIC_ID)
    made.marker_read(Offset(3), aborted)
    made.records_read([(Offset(4), HELD.to_bytes())])
    assert (made.records_checked, made.records_unchecked) == (1, 2)
    assert (made.ids_unchecked, made.markers) == (0, 1)


def test_evidence_is_bounded_and_counts_are_not():
    """Of a thousand differences some are listed."""
    made = check(evidence_max=3)
    made.marker_read(Offset(60), Marker(DATA, FREE, False, EndOffset(0), None, 0, TOPIC_ID))
    made.records_read([(Offset(it), FREE.to_bytes()) for it in range(50)])
    assert made.counts == {DifferenceKind.SHOWN_ABORTED: 50}
    assert [it.offset for it in made.differences] == [0, 1, 2]
