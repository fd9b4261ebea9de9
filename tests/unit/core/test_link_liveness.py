"""Unit tests of pipeline.core.link_liveness."""

import pytest

from stilltide.pipeline.core.link_liveness import LinkLiveness
from stilltide.schemas.replication.positions import Beat
from stilltide.schemas.values import ClusterName

A, C = ClusterName("a"), ClusterName("c")


def heard(at_ms: int, age_ms: int | None = 0) -> LinkLiveness:
    """After one beat of the link from `a`, read as it was written."""
    liveness = LinkLiveness()
    liveness.beat_read(A, Beat(at_ms, age_ms), at_ms, at_ms, at_ms)
    return liveness


def test_a_link_is_connected_while_its_newest_beat_is_younger_than_15_s():
    """I13: the age alone decides, and another beat renews it."""
    liveness = heard(1000)
    assert liveness.connected(A, 15_999)
    assert not liveness.connected(A, 16_000)
    liveness.beat_read(A, Beat(20_000, 0), 20_000, 20_000, 20_000)
    assert liveness.connected(A, 34_999)


def test_both_directions_count():
    """I13: the link back was silent for 9 s when the beat was written, so it has 6 s left."""
    liveness = heard(0, age_ms=9000)
    assert liveness.connected(A, 5999)
    assert not liveness.connected(A, 6000)
    assert liveness.age_ms(A, 6000) == 6000
    assert liveness.back_age_ms(A, 6000) == 15_000


def test_a_link_that_has_never_written_a_beat_counts_as_connected():
    """I13: a link that has just begun has written none, and has heard of none back."""
    assert LinkLiveness().connected(A, 10**12)
    assert heard(0).connected(C, 10**12)
    assert heard(0, age_ms=None).connected(A, 14_999)
    assert not heard(0, age_ms=None).connected(A, 15_000)


@pytest.mark.parametrize(
    ("written_ms", "since_ms", "age_ms"),
    [(0, 99_000, 1000), (10**9, 99_000, 0), (99_500, 99_000, 500), (40_000, 0, 60_000)],
)
def test_a_clock_that_is_wrong_changes_an_age_by_the_time_between_two_reads_at_most(
    written_ms: int, since_ms: int, age_ms: int
):
    """The beat's own time counts only within the time in which it must have been written."""
    liveness = LinkLiveness()
    liveness.beat_read(A, Beat(written_ms, 0), since_ms, 100_000, 100_000)
    assert liveness.age_ms(A, 100_000) == age_ms


def test_an_older_beat_of_another_partition_makes_nothing_older():
    """A link writes a beat to each partition; the newest one counts."""
    liveness = heard(10_000)
    liveness.beat_read(A, Beat(2000, 0), None, 10_001, 10_001)
    assert liveness.age_ms(A, 10_001) == 1
