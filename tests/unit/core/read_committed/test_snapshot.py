"""The read-committed filter with snapshots (D4, D5)."""

import pytest

from stilltide.pipeline.core.read_committed.machine import (
    MALFORMED,
    Deliver,
    Effect,
    PartitionFilter,
    Reason,
    RecordVerdict,
    Withheld,
)
from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.errors import MarkerConflictError
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, TxnId

X, Y, Z = TxnId(0, 1), TxnId(0, 2), TxnId(1, 9)


class Rig:
    """A machine whose payloads are the offsets."""

    def __init__(self, position: int = 0) -> None:
        self.machine = PartitionFilter[int](position=Offset(position), waiting_max=100)

    def read(self, *records: tuple[int, TxnId | None]) -> list[Effect[int]]:
        """Feeds records."""
        offsets = [offset for offset, _ in records]
        txns = [txn and txn.to_bytes() for _, txn in records]
        return self.machine.records_read(offsets, txns, offsets)

    def commit(self, txn: TxnId, end: int) -> list[Effect[int]]:
        """Feeds a commit marker."""
        return self.machine.marker_read(txn.to_bytes(), committed=True, end_offset=EndOffset(end))

    def abort(self, txn: TxnId) -> list[Effect[int]]:
        """Feeds an abort marker."""
        return self.machine.marker_read(txn.to_bytes(), committed=False, end_offset=None)

    def snapshot(
        self, to: int, *aborted: TxnId, valid_from: int = 0, floors: dict[int, int] | None = None
    ) -> list[Effect[int]]:
        """Feeds a snapshot with this M, these aborted ids, and this F."""
        ids = AbortedSet(floors or {})
        for txn in aborted:
            ids.add(*txn)
        end = SnapshotEnd(
            bytes(16), EndOffset(to), EndOffset(0), 1, (), {}, {}, EndOffset(valid_from), ()
        )
        return self.machine.snapshot_read(Snapshot(end, ids))


@pytest.mark.parametrize("first", ["records", "snapshot"])
def test_a_snapshot_decides_what_no_marker_tells(first: str):
    """D4, D5: hidden if aborted, visible below M, undecided from M on; in either order."""
    rig = Rig()
    records = ((0, X), (1, Y), (2, None), (3, X))
    if first == "snapshot":
        rig.snapshot(3, Y)
        assert rig.read(*records) == [Deliver([0, 2], EndOffset(3))]
    else:
        rig.read(*records)
        assert rig.snapshot(3, Y) == [Deliver([0, 2], EndOffset(3))]
    assert (rig.machine.position, rig.machine.statistics.hidden) == (3, 1)
    assert rig.machine.undecided == (3, X)


def test_aborted_records_are_hidden_past_the_position_too():
    """D4: a late record of an aborted transaction, in the set or below a floor, is never shown."""
    rig = Rig()
    rig.snapshot(1, X, floors={1: 10})
    assert rig.read((5, X), (6, Z), (7, None)) == [Deliver([7], EndOffset(8))]


def test_a_marker_counts_for_more_than_the_position():
    """D1, D4: what ended since the snapshot is decided by its marker."""
    rig = Rig()
    rig.snapshot(2)
    rig.commit(X, 4)
    rig.abort(Y)
    assert rig.read((2, X), (3, X), (4, Y), (5, Z)) == [Deliver([2, 3], EndOffset(5))]


def test_outcomes_that_a_snapshot_tells_are_forgotten():
    """Memory is bounded by what has ended above the snapshot."""
    rig = Rig()
    rig.commit(X, 4)
    rig.abort(Y)
    rig.commit(Z, 9)
    rig.snapshot(4, Y)
    assert rig.machine.statistics.outcomes == 1
    rig.commit(X, 4)
    rig.abort(Y)
    assert rig.machine.statistics.outcomes == 1, "a repeat is not held either"
    assert rig.read((0, X), (1, Y), (3, X), (8, Z)) == [Deliver([0, 3, 8], EndOffset(9))]


def test_a_marker_that_the_snapshot_absorbed_still_decides_what_waits():
    """D1: an absorbed marker, read again after a rebalance, still shows that a record is late."""
    rig = Rig()
    rig.snapshot(2)
    rig.read((5, X), (6, None))
    assert rig.commit(X, 2) == [Withheld(Offset(5), Reason.LATE, X), Deliver([6], EndOffset(7))]


def test_a_newer_snapshot_goes_on():
    """D2, D4: a record of an unregistered transaction is decided only once M is above it."""
    rig = Rig()
    rig.read((0, X), (1, Y))
    assert rig.snapshot(1) == [Deliver([0], EndOffset(1))]
    assert rig.snapshot(2) == [Deliver([1], EndOffset(2))]


def test_what_a_snapshot_said_is_asked_anew_of_the_next_one():
    """D4: a record undecided by one snapshot is hidden by the next; cached answers are dropped."""
    rig = Rig()
    rig.snapshot(1)
    rig.read((0, X), (1, X))
    assert rig.snapshot(1, X) == [Deliver([], EndOffset(2))]


def test_a_snapshot_waits_while_something_below_its_start_is_held():
    """D4: it decides nothing below F: a marker, or the snapshot before, may still do."""
    rig = Rig()
    rig.read((0, X), (1, Y), (9, Z))
    assert rig.snapshot(20, valid_from=5, floors={0: 3}) == []
    assert (rig.machine.snapshot, rig.machine.position) == (None, 0)
    assert rig.commit(X, 1) == [Deliver([0], EndOffset(1))]
    assert rig.abort(Y) == [Deliver([9], EndOffset(10))], "and then it is taken up"
    assert rig.machine.newer_snapshot is None


def test_what_left_the_log_undecided_is_reported_as_lost():
    """D4: with the markers read to their end nothing will decide it; it is never guessed."""
    rig = Rig()
    rig.read((0, X), (1, None), (2, Y), (9, Z))
    rig.commit(Y, 3)
    rig.snapshot(20, valid_from=5, floors={0: 3})
    assert rig.machine.markers_read_to_end() == [
        Withheld(Offset(0), Reason.LOST, X),
        Deliver([1, 2, 9], EndOffset(10)),
    ]
    assert rig.machine.statistics.lost == 1


def test_what_is_under_way_when_its_part_of_the_log_is_deleted_may_be_lost_too():
    """D4: the snapshot is taken up once the reader itself has come past F."""
    rig = Rig()
    rig.snapshot(20, valid_from=5)
    assert rig.machine.markers_read_to_end() == []
    assert rig.read((3, X), (4, None)) == [
        Withheld(Offset(3), Reason.LOST, X),
        Deliver([4], EndOffset(5)),
    ]
    assert rig.read((5, X)) == [Deliver([5], EndOffset(6))]


def test_nothing_is_lost_at_or_past_the_start_of_a_snapshot():
    """D2: markers read to their end decide nothing by themselves."""
    rig = Rig(position=5)
    rig.read((5, X))
    rig.snapshot(5, valid_from=5)
    assert rig.machine.markers_read_to_end() == []
    assert rig.machine.undecided == (5, X)


@pytest.mark.parametrize("first", ["marker", "snapshot"])
def test_a_commit_that_a_snapshot_calls_aborted_is_an_error(first: str):
    """A transaction has one outcome; neither is preferred."""
    rig = Rig()
    steps = [lambda: rig.commit(X, 3), lambda: rig.snapshot(3, X)]
    if first == "snapshot":
        steps.reverse()
    steps[0]()
    with pytest.raises(MarkerConflictError, match="0:1") as caught:
        steps[1]()
    assert "by the snapshot" in str(caught.value.detail)


def test_a_commit_below_a_floor_is_no_contradiction():
    """E5: floors hide the sequences of committed transactions too; their data has left the log."""
    rig = Rig(position=5)
    rig.commit(X, 3)
    rig.snapshot(9, valid_from=5, floors={0: 2})
    rig.commit(X, 3)
    assert rig.machine.statistics.outcomes == 0


def test_a_verdict_of_each_record_whatever_is_in_front():
    """D1, D2, D3, D4: markers and snapshot decide each record alone; nothing changes by that."""
    rig = Rig()
    rig.snapshot(3, Y)
    rig.commit(X, 7)
    verdict = rig.machine.verdict
    assert verdict(0, None) is RecordVerdict.VISIBLE
    assert verdict(2, Y.to_bytes()) is RecordVerdict.ABORTED
    assert verdict(2, Z.to_bytes()) is RecordVerdict.VISIBLE
    assert verdict(5, Z.to_bytes()) is RecordVerdict.UNDECIDED
    assert verdict(6, X.to_bytes()) is RecordVerdict.VISIBLE
    assert verdict(7, X.to_bytes()) is RecordVerdict.LATE
    assert verdict(8, MALFORMED) is RecordVerdict.MALFORMED
    assert rig.machine.statistics.delivered == 0
