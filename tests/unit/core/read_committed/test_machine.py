from collections.abc import Callable

import pytest

from stilltide.pipeline.core.read_committed.machine import (
    MALFORMED,
    Deliver,
    Effect,
    PartitionFilter,
    PauseFetching,
    Reason,
    ResumeFetching,
    Undecided,
    Withheld,
)
from stilltide.pipeline.errors import MarkerConflictError
from stilltide.schemas.values import TxnId

X = TxnId(0, 1)
Y = TxnId(0, 2)
Z = TxnId(1, 1)


Machine = PartitionFilter[int]
Effects = list[Effect[int]]


def machine(position: int = 0, waiting_max: int = 100) -> Machine:
    """A machine whose payloads are the offsets."""
    return PartitionFilter(position=position, waiting_max=waiting_max)


def read(m: Machine, *records: tuple[int, TxnId | bytes | None]) -> Effects:
    """Feeds (offset, transaction) pairs; the payload of a record is its offset."""
    offsets = [offset for offset, _ in records]
    txns = [txn.to_bytes() if isinstance(txn, TxnId) else txn for _, txn in records]
    return m.records_read(offsets, txns, offsets)


def commit(m: Machine, txn: TxnId, end_offset: int) -> Effects:
    """Feeds a commit marker."""
    return m.marker_read(txn.to_bytes(), committed=True, end_offset=end_offset)


def abort(m: Machine, txn: TxnId, end_offset: int | None = None) -> Effects:
    """Feeds an abort marker."""
    return m.marker_read(txn.to_bytes(), committed=False, end_offset=end_offset)


def test_plain_records_are_delivered_at_once():
    """D3: with nothing before them, records without transaction are visible as read."""
    assert read(machine(), (0, None), (1, None)) == [Deliver([0, 1], 2)]


def test_committed_records_are_visible_when_the_marker_came_first():
    """D1, D5: a marker read before its records decides them at once."""
    m = machine()
    assert commit(m, X, 2) == []
    assert read(m, (0, X), (1, X)) == [Deliver([0, 1], 2)]


def test_a_later_marker_releases_everything_up_to_the_next_undecided_record():
    """D2: delivery goes on in offset order and stops at the next record without outcome."""
    m = machine()
    assert read(m, (0, None), (1, X), (2, None), (3, Y), (4, None)) == [Deliver([0], 1)]
    assert m.undecided == Undecided(1, X)
    assert commit(m, X, 2) == [Deliver([1, 2], 3)]
    assert m.undecided == Undecided(3, Y)
    assert abort(m, Y) == [Deliver([4], 5)]
    assert m.undecided is None


def test_a_marker_of_another_transaction_does_not_pass_the_undecided_record():
    """D2: a later transaction's outcome waits for the earlier record."""
    m = machine()
    assert read(m, (0, X), (1, Y)) == []
    assert commit(m, Y, 2) == []
    assert m.position == 0
    assert commit(m, X, 1) == [Deliver([0, 1], 2)]


def test_aborted_records_are_hidden_wherever_they_land():
    """D1: a record of an aborted transaction past the marker's end offset is hidden too."""
    m = machine()
    abort(m, X, 1)
    assert read(m, (0, X), (1, None), (7, X)) == [Deliver([1], 8)]
    assert (m.statistics.hidden, m.statistics.late) == (2, 0)


def test_passing_only_hidden_records_moves_the_position():
    """What may be committed moves past hidden records though nothing is delivered."""
    m = machine()
    abort(m, X)
    assert read(m, (0, X), (1, X)) == [Deliver([], 2)]


def test_a_late_record_is_withheld_and_reported():
    """D1: a record at or past the end offset of its committed transaction is not delivered."""
    m = machine()
    commit(m, X, 1)
    assert read(m, (0, X), (1, X), (2, None)) == [Withheld(1, Reason.LATE, X), Deliver([0, 2], 3)]
    assert m.statistics.late == 1


def test_a_late_record_behind_an_undecided_one_is_withheld_when_reached():
    """D1, D2: the rule for late records holds for those that waited."""
    m = machine()
    read(m, (0, Y), (1, X), (2, None))
    assert commit(m, X, 1) == []
    assert commit(m, Y, 1) == [Withheld(1, Reason.LATE, X), Deliver([0, 2], 3)]


def test_a_malformed_header_is_withheld_and_counted():
    """A record whose transaction cannot be read is never delivered and stops nothing."""
    m = machine()
    assert read(m, (0, MALFORMED), (1, None)) == [
        Withheld(0, Reason.MALFORMED, None),
        Deliver([1], 2),
    ]
    assert (m.statistics.malformed, m.statistics.hidden) == (1, 0)


def test_a_malformed_record_behind_an_undecided_one_waits():
    """D2: nothing, not even a withheld record, moves the position past an undecided one."""
    m = machine()
    assert read(m, (0, X), (1, MALFORMED)) == []
    assert (m.position, m.statistics.malformed) == (0, 0)
    assert commit(m, X, 1) == [Withheld(1, Reason.MALFORMED, None), Deliver([0], 2)]


def test_the_end_passes_offsets_without_records():
    """Control records leave no trace but the end offset: the position follows it."""
    m = machine()
    read(m, (0, None))
    assert m.end_reached(3) == [Deliver([], 3)]
    assert m.end_reached(3) == []


def test_the_end_behind_an_undecided_record_waits_for_it():
    """D2: a known end does not move the position past an undecided record, its outcome does."""
    m = machine()
    read(m, (0, X))
    assert m.end_reached(5) == []
    assert m.position == 0
    assert abort(m, X) == [Deliver([], 5)]


def test_a_repeated_marker_changes_nothing():
    """C4: markers written twice are harmless; an abort may repeat with another end offset."""
    m = machine()
    commit(m, X, 1)
    abort(m, Y, 4)
    assert commit(m, X, 1) == []
    assert abort(m, Y, 9) == []
    assert m.statistics.outcomes == 2


@pytest.mark.parametrize(
    ("first", "then", "detail"),
    [
        (
            lambda m: commit(m, X, 7),
            lambda m: abort(m, X),
            "first commit to end offset 7, now abort",
        ),
        (
            lambda m: abort(m, X),
            lambda m: commit(m, X, 7),
            "first abort, now commit to end offset 7",
        ),
        (
            lambda m: commit(m, X, 7),
            lambda m: commit(m, X, 8),
            "first commit to end offset 7, now commit to end offset 8",
        ),
    ],
)
def test_contradicting_markers_are_an_error_that_names_both(
    first: Callable[[Machine], Effects], then: Callable[[Machine], Effects], detail: str
):
    """A transaction has one outcome; a second one is never silently preferred."""
    m = machine()
    first(m)
    with pytest.raises(MarkerConflictError) as caught:
        then(m)
    assert "0:1" in caught.value.primary
    assert caught.value.detail == detail


def test_fetching_pauses_at_the_limit_and_resumes_at_half_of_it():
    """D7: records behind an undecided one are kept; beyond the limit fetching stops."""
    m = machine(waiting_max=4)
    assert read(m, (0, X), (1, None), (2, Y)) == []
    assert read(m, (3, None)) == [PauseFetching()]
    assert read(m, (4, None)) == [], "a record under way is kept"
    assert commit(m, X, 1) == [Deliver([0, 1], 2)]
    assert commit(m, Y, 3) == [Deliver([2, 3, 4], 5), ResumeFetching()]


def test_fetching_stays_paused_between_the_limits():
    """D7: it resumes at half of the limit, not at every record let go."""
    m = machine(waiting_max=4)
    read(m, (0, X), (1, Y), (2, None), (3, Z))
    assert commit(m, X, 1) == [Deliver([0], 1)]
    assert commit(m, Y, 2) == [Deliver([1, 2], 3), ResumeFetching()]
    assert m.statistics.waiting == 1


def test_a_decided_batch_never_waits():
    """Records decided when read do not pause fetching, however many come."""
    m = machine(waiting_max=1)
    assert read(m, *[(offset, None) for offset in range(1000)]) == [
        Deliver(list(range(1000)), 1000)
    ]
    assert m.statistics.waiting == 0


def test_coordinators_are_told_apart():
    """Transactions with the same sequence of two coordinators have outcomes of their own."""
    m = machine()
    commit(m, X, 2)
    abort(m, Z)
    assert read(m, (0, Z), (1, X)) == [Deliver([1], 2)]


def test_reading_begins_at_the_position():
    """A partition taken up in the middle counts from there."""
    m = machine(position=40)
    assert m.position == 40
    assert read(m, (41, X)) == [Deliver([], 41)], "offset 40 holds no record"
    assert m.position == 41
    assert m.undecided == Undecided(41, X)


def test_no_records_no_effects():
    """An empty batch is nothing."""
    assert read(machine()) == []
