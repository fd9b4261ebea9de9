"""What a snapshot writer forgets, and when: retention, topics that go or come again (E5, E8)."""

from stilltide.pipeline.core.snapshots.effects import ReadPositions, SnapshotsTaken, TrimMarkers
from stilltide.pipeline.core.snapshots.writer import DELETED_AFTER_MS
from stilltide.schemas.values import Offset
from tests.support.snapshots.writer import ID, OTHER_ID, P, Q, Rig, abort, commit, found, still_open


def test_ids_leave_behind_retention_and_stay_hidden():
    """E5: below a floor an id is needed no more; parts go from the front, their keys with them."""
    rig = Rig()
    rig.add(*map(abort, range(1, 6)))
    rig.take(found(10), low=6)
    rig.take(found(12), low=6)
    effects = rig.to_write(rig.request(), {P: found(12, start=12)}, low=6)
    assert rig.keys(effects) == [
        ("EndKey", False),
        ("PartKey", True),
        ("PartKey", True),
        ("StarKey", False),
    ]
    rig.write(effects)
    end = rig.snapshot_of()
    assert (end.first_part, end.part_checksums, end.unsealed) == (3, (), {})
    assert (end.floors, end.floors_valid_from) == ({0: 6}, 12)
    snapshot = rig.table().snapshot(P, ID)
    assert snapshot is not None
    assert snapshot.visible(12, 0, 5) is False
    assert snapshot.visible(11, 0, 5) is None


def test_a_low_watermark_of_the_same_probe_is_too_new():
    """E5: its transactions may have written past the end that the probe read before."""
    rig = Rig()
    rig.add(abort(1))
    rig.take(found(10), low=2)
    rig.take(found(10, start=10), low=2)
    assert rig.snapshot_of().unsealed == {}
    rig = Rig()
    rig.add(abort(1))
    rig.take(found(10, start=10), low=2)
    assert rig.snapshot_of().unsealed == {0: [1]}


def test_records_above_an_open_native_transaction_hold_the_floor():
    """E5: such records are above the last stable offset, and below a floor's end offset."""
    rig = Rig()
    rig.take(found(10), low=5)
    rig.add(abort(1))
    rig.take(found(20, stable=10), low=5)
    rig.take(found(20, start=15, stable=15), low=5)
    assert rig.snapshot_of().floors == {}
    rig.take(found(20, start=15))
    snapshot = rig.table().snapshot(P, ID)
    assert snapshot is not None
    assert snapshot.visible(17, 0, 2) is True


def test_a_topic_that_was_created_anew_begins_at_zero():
    """E8: M and F are offsets of the former topic; ids and floors stay."""
    rig = Rig()
    rig.add(*map(abort, range(1, 6)))
    rig.take(found(10))
    rig.take(found(3, topic_id=OTHER_ID), still_open(2, topic_id=OTHER_ID))
    end = rig.snapshot_of()
    assert (end.topic_id, end.max_read_position, end.floors_valid_from) == (OTHER_ID, 2, 0)
    assert len(end.part_checksums) == 2


def test_a_commit_of_another_topic_is_absorbed_with_what_it_could_have_written():
    """E8: records of a commit that was read before the end offset are below that end offset."""
    rig = Rig()
    rig.take(found(10))
    rig.add(commit(4, 99, topic_id=OTHER_ID))
    marker = rig.end - 1
    rig.take(found(12), still_open(11))
    assert rig.table().star.markers_covered_to == marker
    rig.take(found(14))
    assert rig.table().star.markers_covered_to == rig.end


def test_a_deleted_topic_leaves_nothing():
    """E8: once it was missed for a minute, end, parts and markers go; the end goes first."""
    rig = Rig()
    rig.add(*map(abort, range(1, 6)))
    rig.take(found(10), low=6)
    rig.take(found(10), low=6)
    assert rig.to_write(rig.request(), {}, low=6) == [SnapshotsTaken((1,))]
    assert rig.tick(DELETED_AFTER_MS) == [ReadPositions(4, (P,))]
    effects = rig.to_write(4, {}, low=6)
    assert rig.keys(effects) == [
        ("EndKey", True),
        ("PartKey", True),
        ("PartKey", True),
        ("StarKey", False),
    ]
    assert rig.write(effects) == [TrimMarkers(Offset(rig.end))]
    assert not rig.table().ends
    assert not rig.writer.buffers


def test_what_a_deleted_topic_aborted_stays_hidden_in_the_next_one():
    """E8: a late record in a topic of the same name is below the floor of new topics."""
    rig = Rig()
    rig.add(abort(1))
    rig.take(found(10), low=6)
    rig.to_write(rig.request(), {}, low=6)
    rig.tick(DELETED_AFTER_MS)
    rig.write(rig.to_write(3, {}, low=6))
    rig.begin()
    rig.take(found(3, topic_id=OTHER_ID))
    snapshot = rig.table().snapshot(P, OTHER_ID)
    assert snapshot is not None
    assert snapshot.visible(2, 0, 1) is False
    assert snapshot.visible(2, 0, 6) is True


def test_those_floors_are_not_for_partitions_known_before():
    """E8: known partitions without a snapshot get one, so that a new writer knows them."""
    rig = Rig()
    rig.add(abort(1))
    rig.take(found(10), low=6)
    rig.to_write(rig.request(), {}, low=6)
    rig.tick(DELETED_AFTER_MS)
    rig.add(abort(8, Q))
    rig.write(rig.to_write(3, {}, low=6))
    end = rig.snapshot_of(Q)
    assert (end.max_read_position, end.floors, end.unsealed) == (0, {}, {})
    assert rig.table().star.markers_covered_to < rig.end
    assert rig.table().star.floors == {0: 6}


def test_markers_that_come_while_a_deletion_is_written_are_kept():
    """E8: a client that aborts late may still write to a topic of that name."""
    rig = Rig()
    rig.add(abort(1))
    rig.take(found(10), low=6)
    rig.to_write(rig.request(), {}, low=6)
    rig.tick(DELETED_AFTER_MS)
    effects = rig.to_write(3, {}, low=6)
    assert rig.add(abort(7)) == []
    rig.write(effects)
    rig.take(found(3, topic_id=OTHER_ID))
    assert rig.snapshot_of().unsealed == {0: [7]}


def test_a_deleted_topic_waits_for_its_youngest_abort():
    """E8: what the floor would not hide is kept, until a probe before has seen it ended."""
    rig = Rig()
    rig.add(abort(1), abort(7))
    rig.take(found(10), low=6)
    rig.to_write(rig.request(), {}, low=6)
    rig.tick(DELETED_AFTER_MS)
    assert rig.to_write(3, {}, low=8) == []
    rig.tick(5000)
    assert rig.keys(rig.to_write(4, {}, low=8))[0] == ("EndKey", True)


def test_a_topic_that_comes_back_in_time_loses_nothing():
    """A cluster that did not know a topic for a while may know it again."""
    rig = Rig()
    rig.add(abort(1))
    rig.to_write(rig.request(), {})
    rig.tick(DELETED_AFTER_MS - 1)
    rig.write(rig.to_write(2, {P: found(10)}))
    assert rig.snapshot_of().unsealed == {0: [1]}
    rig.to_write(rig.request(), {})
    rig.tick(5000)
    assert rig.to_write(4, {}) == []
