"""The snapshot writer, step by step (E1, E2, E3, E4, E6, E7)."""

import pytest

from stilltide.pipeline.core.snapshots.effects import (
    AskBarriers,
    ReadMarkerEnd,
    ReadPositions,
    SnapshotsTaken,
    TrimMarkers,
    WriteSnapshots,
)
from stilltide.pipeline.core.snapshots.writer import FULL_INTERVAL_MS, SWEEP_MS
from stilltide.pipeline.errors import MarkerConflictError, MarkersTrimmedError, SnapshotPartError
from stilltide.schemas.coordinator.markers import Barrier, Marker, Probe
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.retry import STEP
from stilltide.schemas.snapshots.snapshots import decode_star
from stilltide.schemas.values import EndOffset, Offset, TxnId
from tests.support.snapshots.writer import (
    ID,
    NONCE,
    NOW_MS,
    OTHER_ID,
    P,
    Q,
    Rig,
    abort,
    commit,
    found,
    still_open,
)


def test_a_snapshot_after_one_change_and_the_interval():
    """E7: nothing before 5 s are over; then positions, barriers, the markers' end, and a write."""
    rig = Rig()
    assert rig.add(abort(1)) == []
    assert rig.writer.deadline_ms == NOW_MS + 5000
    assert rig.tick(4999) == []
    assert rig.tick(1) == [ReadPositions(1, (P,))]
    assert rig.positions(1, {P: found(10)}, coordinators=2) == [
        AskBarriers(Probe(NONCE, 1), [0, 1])
    ]
    assert rig.barrier(1) == []
    assert rig.barrier(1, coordinator=1) == [ReadMarkerEnd(1)]
    effects = rig.writer.marker_end_read(1, EndOffset(rig.end), rig.now_ms)
    assert rig.keys(effects) == [("EndKey", False), ("StarKey", False)]
    assert rig.write(effects) == [TrimMarkers(Offset(3))]
    end = rig.snapshot_of()
    assert (end.max_read_position, end.unsealed, end.topic_id) == (10, {0: [1]}, ID)
    assert rig.writer.deadline_ms == NOW_MS + SWEEP_MS


def test_many_changes_do_not_wait():
    """E7: the hundredth change begins a probe at once."""
    rig = Rig()
    assert rig.add(*map(abort, range(99))) == []
    assert rig.add(abort(99)) == [ReadPositions(1, (P,))]


def test_probes_for_many_changes_keep_a_distance():
    """E7: under load they come a second apart at least; a request does not wait for that."""
    rig = Rig()
    rig.add(*map(abort, range(100)))
    rig.write(rig.to_write(1, {P: found(10)}))
    assert rig.add(*map(abort, range(100, 200))) == []
    assert rig.writer.deadline_ms == NOW_MS + FULL_INTERVAL_MS
    assert rig.tick(FULL_INTERVAL_MS - 1) == []
    assert rig.tick(1) == [ReadPositions(2, (P,))]
    rig.write(rig.to_write(2, {P: found(20)}))
    rig.add(*map(abort, range(200, 300)))
    assert rig.request() == 3


def test_a_request_is_served_by_a_probe_that_began_after_it():
    """E7: one that comes during a probe waits for the next."""
    rig = Rig()
    counter = rig.request()
    assert rig.writer.requested(2, P, rig.now_ms) == []
    effects = rig.write(rig.to_write(counter, {P: found(10)}))
    assert effects == [TrimMarkers(Offset(1)), SnapshotsTaken((1,)), ReadPositions(2, (P,))]
    assert rig.to_write(2, {P: found(10)}) == [SnapshotsTaken((2,))]


def test_nothing_is_written_when_nothing_has_changed():
    """E6: no snapshot is written if the durable one has the same content."""
    rig = Rig()
    rig.take(found(10))
    counter = rig.request()
    assert rig.to_write(counter, {P: found(10)}) == [SnapshotsTaken((1,))]


def test_an_open_transaction_holds_the_position():
    """E1: M is the lowest start offset, or the last stable offset; it never goes back."""
    rig = Rig()
    rig.take(found(10), still_open(7))
    assert rig.snapshot_of().max_read_position == 7
    rig.take(found(20, stable=9))
    assert rig.snapshot_of().max_read_position == 9
    rig.add(abort(1))
    rig.take(found(20), still_open(3))
    assert rig.snapshot_of().max_read_position == 9


def test_a_start_offset_of_another_topic_counts_as_zero():
    """E8: a transaction registered before the topic was created again may write anywhere in it."""
    rig = Rig()
    rig.take(found(10), still_open(7, topic_id=OTHER_ID))
    assert rig.snapshot_of().max_read_position == 0


def test_a_barrier_of_another_probe_says_nothing():
    """E1: barriers of earlier probes, or of a former writer's, are ignored."""
    rig = Rig()
    counter = rig.request()
    rig.positions(counter, {P: found(10)})
    assert rig.add(Barrier(0, Probe(b"x" * 16, counter), 0, ())) == []
    assert rig.add(Barrier(0, Probe(NONCE, counter + 1), 0, ())) == []
    assert rig.barrier(counter) == [ReadMarkerEnd(counter)]


def test_markers_behind_the_barrier_count_too():
    """E1 (3): the marker in front may have been compacted in favour of a zombie's later copy."""
    rig = Rig()
    counter = rig.request()
    rig.positions(counter, {P: found(10)})
    rig.barrier(counter)
    assert rig.writer.marker_end_read(counter, EndOffset(rig.end + 2), rig.now_ms) == []
    assert rig.add(None) == []
    rig.write(rig.add(abort(5)))
    end = rig.snapshot_of()
    assert (end.max_read_position, end.unsealed) == (10, {0: [5]})


def test_offsets_without_a_marker_are_passed():
    """The marker partition is compacted: its end may be reached without a record."""
    rig = Rig()
    counter = rig.request()
    rig.positions(counter, {P: found(10)})
    rig.barrier(counter)
    assert rig.writer.marker_end_read(counter, EndOffset(50), rig.now_ms) == []
    (effect,) = rig.writer.end_reached(EndOffset(50), rig.now_ms)
    assert isinstance(effect, WriteSnapshots)


def test_a_coordinator_that_never_wrote_has_nothing_open():
    """E1 (2): it may have no owner, and is not asked."""
    rig = Rig()
    counter = rig.request()
    ends = {0: EndOffset(0), 1: EndOffset(4)}
    (effect,) = rig.writer.positions_read(counter, {P: found(10)}, ends, rig.now_ms)
    assert effect == AskBarriers(Probe(NONCE, counter), [1])


def test_what_is_not_answered_is_asked_again():
    """E1: every step, every second; a barrier that was read is not asked for any more."""
    rig = Rig()
    counter = rig.request()
    assert rig.tick(STEP.wait_ms()) == [ReadPositions(counter, (P,))]
    rig.positions(counter, {P: found(10)}, coordinators=2)
    rig.barrier(counter)
    assert rig.tick(STEP.wait_ms()) == [AskBarriers(Probe(NONCE, counter), [1])]
    rig.barrier(counter, coordinator=1)
    assert rig.tick(STEP.wait_ms()) == [ReadMarkerEnd(counter)]
    (effect,) = rig.writer.marker_end_read(counter, EndOffset(rig.end), rig.now_ms)
    assert isinstance(effect, WriteSnapshots)
    assert rig.tick(STEP.wait_ms()) == []


def test_results_that_come_twice_or_late_change_nothing():
    """Machine contract: of a step that is over, or of another probe."""
    rig = Rig()
    counter = rig.request()
    effects = rig.to_write(counter, {P: found(10)})
    assert rig.positions(counter, {P: found(99)}) == []
    assert rig.writer.marker_end_read(counter, EndOffset(99), rig.now_ms) == []
    rig.write(effects)
    assert rig.writer.snapshots_written(counter, rig.now_ms) == []
    assert rig.snapshot_of().max_read_position == 10


def test_parts_are_sealed_when_full_and_never_again_written():
    """E2, E6: five aborts make two parts of two; the next snapshot writes one more."""
    rig = Rig()
    rig.add(*map(abort, range(1, 6)))
    effects = rig.to_write(rig.request(), {P: found(10)})
    assert rig.keys(effects) == [
        ("PartKey", False),
        ("PartKey", False),
        ("EndKey", False),
        ("StarKey", False),
    ]
    rig.write(effects)
    assert rig.table().parts(P) == [{0: [1, 2]}, {0: [3, 4]}]
    rig.add(abort(6), abort(7))
    effects = rig.to_write(rig.request(), {P: found(12)})
    assert rig.keys(effects) == [("PartKey", False), ("EndKey", False), ("StarKey", False)]


def test_a_write_that_failed_is_made_again_by_another_writer():
    """E3: parts, end and trimming wait for a transaction that commits; numbers are used again."""
    rig = Rig()
    rig.add(*map(abort, range(1, 4)))
    (first,) = rig.to_write(rig.request(), {P: found(10)})
    assert isinstance(first, WriteSnapshots)
    rig.begin()
    assert rig.writer.position == 0
    rig.end = 0
    rig.add(*map(abort, range(1, 4)))
    (second,) = rig.to_write(rig.request(), {P: found(10)})
    assert isinstance(second, WriteSnapshots)
    assert second.records == first.records


def test_a_commit_is_absorbed_only_below_the_position():
    """E2: while M is below the commit's end, K stays at the marker, which is not trimmed."""
    rig = Rig()
    rig.add(abort(1), commit(2, end_offset=9), abort(3))
    effects = rig.take(found(10), still_open(8))
    assert effects == [TrimMarkers(Offset(1)), SnapshotsTaken((1,))]
    assert rig.snapshot_of().markers_covered_to == 1
    assert rig.tick(5000) == [ReadPositions(2, (P,))]
    assert rig.write(rig.to_write(2, {P: found(10)})) == [TrimMarkers(Offset(rig.end))]


def test_the_trim_waits_for_every_partition():
    """E3: K* is the lowest over all data partitions, also those that are not written just now."""
    rig = Rig()
    rig.add(abort(1, Q))
    rig.now_ms += 1000
    rig.add(abort(2, P))
    assert rig.take(found(10)) == [SnapshotsTaken((1,))]
    assert rig.table().star.markers_covered_to == 0
    assert rig.snapshot_of(P).markers_covered_to == rig.end


def test_a_new_writer_begins_where_the_last_one_was_covered():
    """E4: the set, M, parts and numbers are what they were; markers are read from K* on."""
    rig = Rig()
    rig.add(*map(abort, range(1, 6)))
    rig.take(found(10))
    rig.begin()
    assert rig.writer.position == rig.end
    rig.add(abort(6), abort(7))
    effects = rig.to_write(rig.request(), {P: found(12)})
    assert rig.keys(effects) == [("PartKey", False), ("EndKey", False), ("StarKey", False)]
    rig.write(effects)
    assert rig.table().parts(P) == [{0: [1, 2]}, {0: [3, 4]}, {0: [5, 6]}]


def test_a_writer_that_would_lack_markers_does_not_begin():
    """E4: neither with an empty snapshot log, nor behind the last one's K*."""
    rig = Rig()
    rig.trimmed_to = 1
    with pytest.raises(MarkersTrimmedError) as caught:
        rig.begin()
    assert caught.value.place == "stilltide.txn-markers/0@1"
    rig = Rig()
    rig.add(abort(1))
    rig.take(found(10))
    rig.trimmed_to = rig.end + 1
    with pytest.raises(MarkersTrimmedError):
        rig.begin()


def test_a_writer_without_all_of_its_parts_does_not_begin():
    """E4: a part that is missing is never an empty set."""
    rig = Rig()
    rig.add(*map(abort, range(1, 6)))
    rig.take(found(10))
    del rig.log[1]
    with pytest.raises(SnapshotPartError, match=r"part 2 .* is missing"):
        rig.begin()


def test_every_partition_is_looked_at_now_and_then():
    """Retention and deletion make no markers, so nothing else would begin a probe."""
    rig = Rig()
    rig.take(found(10))
    assert rig.tick(SWEEP_MS) == [ReadPositions(2, (P,))]


def test_the_first_open_transaction_makes_the_first_snapshot():
    """A partition is known as soon as a transaction has registered there."""
    rig = Rig()
    rig.take(found(10), still_open(0, Q))
    assert rig.tick(5000) == [ReadPositions(2, (Q,))]


def test_a_repeated_marker_changes_nothing():
    """C4: zombies may write it again at any time, also below a floor."""
    rig = Rig()
    rig.add(abort(1), commit(2, 5))
    rig.take(found(10))
    assert rig.add(abort(1), commit(2, 5)) == []
    assert rig.writer.deadline_ms == NOW_MS + SWEEP_MS


@pytest.mark.parametrize(
    ("marker", "error"),
    [
        (commit(1, 5), MarkerConflictError),
        (Marker(P, TxnId(0, 2), True, EndOffset(0), None, 1, ID), DecodeError),
        (abort(2**63), DecodeError),
    ],
    ids=["other outcome", "commit without end", "sequence out of range"],
)
def test_a_marker_that_cannot_be_stops_the_writer_and_is_named(
    marker: Marker, error: type[Exception]
):
    """Fails loudly: the error carries topic, partition and offset."""
    rig = Rig()
    rig.add(abort(1))
    with pytest.raises(error) as caught:
        rig.add(marker)
    assert getattr(caught.value, "place", "") == "stilltide.txn-markers/0@1"


def test_the_star_says_what_a_new_writer_needs():
    """E3: K* is written in the same transaction as the snapshots that it relies on, after them."""
    rig = Rig()
    rig.add(abort(1))
    (effect,) = rig.to_write(rig.request(), {P: found(10)})
    assert isinstance(effect, WriteSnapshots)
    key, value = effect.records[-1]
    assert (key, value is None) == (b"*", False)
    assert value is not None
    assert decode_star(value).markers_covered_to == rig.end


def test_every_coordinator_that_there_is_after_the_positions_is_asked():
    """C14, E1: a coordinator that was added since the last probe is asked by the next one."""
    rig = Rig()
    counter = rig.request()
    assert rig.positions(counter, {P: found(10)}) == [AskBarriers(Probe(NONCE, counter), [0])]
    effects = rig.barrier(counter)
    effects = rig.writer.marker_end_read(counter, EndOffset(rig.end), rig.now_ms)
    rig.write(effects)
    counter = rig.request()
    asked = rig.positions(counter, {P: found(20)}, coordinators=3)
    assert asked == [AskBarriers(Probe(NONCE, counter), [0, 1, 2])]
    assert rig.barrier(counter) == rig.barrier(counter, coordinator=1) == []
    assert rig.barrier(counter, still_open(15), coordinator=2) == [ReadMarkerEnd(counter)]
    rig.write(rig.writer.marker_end_read(counter, EndOffset(rig.end), rig.now_ms))
    assert rig.snapshot_of().max_read_position == 15


def test_positions_that_lack_a_known_coordinator_are_read_again():
    """C14: an answer of a broker whose metadata lag behind would leave a coordinator out."""
    rig = Rig()
    rig.add(Barrier(2, Probe(b"", 0), 0, ()))
    counter = rig.request()
    assert rig.positions(counter, {P: found(10)}, coordinators=2) == []
    assert rig.tick(STEP.wait_ms()) == [ReadPositions(counter, (P,))]
    assert rig.positions(counter, {P: found(10)}, coordinators=3) == [
        AskBarriers(Probe(NONCE, counter), [0, 1, 2])
    ]


def test_a_probe_that_did_not_ask_a_coordinator_is_given_up():
    """C14: a marker names a coordinator that the probe does not know; another probe begins."""
    rig = Rig()
    counter = rig.request()
    rig.positions(counter, {P: found(10)})
    stranger = Marker(P, TxnId(1, 5), False, EndOffset(0), EndOffset(0), 0, ID)
    assert rig.add(stranger) == [ReadPositions(counter + 1, (P,))]
    assert rig.barrier(counter) == [], "which may be older than the positions of the next probe"
    assert rig.positions(counter + 1, {P: found(20)}, coordinators=2) == [
        AskBarriers(Probe(NONCE, counter + 1), [0, 1])
    ]
    rig.barrier(counter + 1)
    assert rig.barrier(counter + 1, coordinator=1) == [ReadMarkerEnd(counter + 1)]
    effects = rig.writer.marker_end_read(counter + 1, EndOffset(rig.end), rig.now_ms)
    assert SnapshotsTaken((1,)) in rig.write(effects), "the request is served by the second probe"
