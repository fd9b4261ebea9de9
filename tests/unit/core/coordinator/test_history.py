"""MarkerHistory: the latest ended transactions, from markers in any order (E9)."""

from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.coordinator.history import MARGIN_MS, MarkerHistory
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)


def marker(sequence: int, data: TopicPartition = P, *, committed: bool = True, records: int = 1):
    """Of coordinator 0."""
    end = EndOffset(9) if committed else None
    return Marker(data, TxnId(0, sequence), committed, EndOffset(0), end, records, bytes(16))


def test_a_transaction_has_all_of_its_partitions_and_ended_with_its_first_marker():
    """A marker that is written again counts once."""
    history = MarkerHistory(5)
    history.marker_read(marker(1, Q, records=3), 20)
    history.marker_read(marker(1, P, records=2), 10)
    history.marker_read(marker(1, P, records=2), 30)
    (one,) = history.latest()
    assert (one.outcome, one.ended_ms, one.record_count) == ("committed", 10, 5)
    assert sorted(one.markers) == [P, Q]


def test_only_the_wanted_outcome_is_told_newest_first():
    """An abort names no counts; two outcomes of one transaction are `mixed`."""
    history = MarkerHistory(5, "aborted")
    for sequence in range(4):
        history.marker_read(marker(sequence, committed=sequence % 2 == 0), sequence)
    assert [one.txn.sequence for one in history.latest()] == [3, 1]
    assert history.latest()[0].record_count is None
    mixed = MarkerHistory(5, "mixed")
    mixed.marker_read(marker(1), 1)
    mixed.marker_read(marker(1, Q, committed=False), 1)
    assert [one.outcome for one in mixed.latest()] == ["mixed"]


def test_it_says_when_older_markers_change_nothing():
    """Only once there are enough transactions; a margin is for markers of the oldest one."""
    history = MarkerHistory(2)
    history.marker_read(marker(1), 1_000_000)
    assert history.needed_from_ms() is None
    history.marker_read(marker(2), 2_000_000)
    history.marker_read(marker(3), 3_000_000)
    assert history.needed_from_ms() == 2_000_000 - MARGIN_MS
    assert [one.txn.sequence for one in history.latest()] == [3, 2]


@given(st.permutations([(sequence, data) for sequence in range(6) for data in (P, Q)]))
def test_the_order_in_which_markers_are_read_changes_nothing(
    order: list[tuple[int, TopicPartition]],
):
    """Partitions of txn-markers are read backwards, in parts."""
    history = MarkerHistory(3)
    for sequence, data in order:
        history.marker_read(marker(sequence, data), 1_000_000 * sequence)
    latest = history.latest()
    assert [one.txn.sequence for one in latest] == [5, 4, 3]
    assert all(sorted(one.markers) == [P, Q] for one in latest)
