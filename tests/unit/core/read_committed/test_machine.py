from collections.abc import Callable

import pytest

from stilltide.pipeline.core.read_committed.machine import (
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


def test_a_later_marker_releases_everything_up_to_the_next_undecided_record():
    """D2: delivery goes on in offset order and stops at the next record without outcome."""
    m = machine()
    assert read(m, (0, None), (1, X), (2, None), (3, Y), (4, None)) == [Deliver([0], 1)]
    assert m.undecided == Undecided(1, X)
    assert commit(m, X, 2) == [Deliver([1, 2], 3)]
    assert m.undecided == Undecided(3, Y)
    assert abort(m, Y) == [Deliver([4], 5)]
    assert m.undecided is None


def test_a_late_record_is_withheld_and_reported():
    """D1: a record at or past the end offset of its committed transaction is not delivered."""
    m = machine()
    commit(m, X, 1)
    assert read(m, (0, X), (1, X), (2, None)) == [Withheld(1, Reason.LATE, X), Deliver([0, 2], 3)]
    assert m.statistics.late == 1


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


def test_a_decided_batch_never_waits():
    """Records decided when read do not pause fetching, however many come."""
    m = machine(waiting_max=1)
    assert read(m, *[(offset, None) for offset in range(1000)]) == [
        Deliver(list(range(1000)), 1000)
    ]
    assert m.statistics.waiting == 0


def test_reading_begins_at_the_position():
    """A partition taken up in the middle counts from there."""
    m = machine(position=40)
    assert m.position == 40
    assert read(m, (41, X)) == [Deliver([], 41)], "offset 40 holds no record"
    assert m.position == 41
    assert m.undecided == Undecided(41, X)
