"""MarkerTrimming: which markers are deleted, and how often the log is asked (E3, E9)."""

from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.snapshots.effects import FindYounger, TrimMarkers
from stilltide.pipeline.core.snapshots.writer import LOOK_MS, MarkerTrimming
from stilltide.schemas.values import Offset

DAY_MS = 24 * 60 * 60 * 1000
NOW_MS = 10 * DAY_MS


def test_without_retention_absorbed_markers_go_at_once():
    """A retention of 0 deletes every absorbed marker, once."""
    trimming = MarkerTrimming(Offset(0), Offset(5), 0)
    assert trimming.due(NOW_MS) == [TrimMarkers(Offset(5))]
    assert trimming.due(NOW_MS) == []


def test_markers_stay_until_they_are_older_than_the_retention():
    """Absorbed markers are deleted only below the first marker that is younger."""
    trimming = MarkerTrimming(Offset(0), Offset(100), DAY_MS)
    assert trimming.due(NOW_MS) == [FindYounger(DAY_MS)]
    assert trimming.younger_found(Offset(40)) == [TrimMarkers(Offset(40))]
    assert trimming.younger_found(Offset(40)) == []


def test_markers_that_no_snapshot_has_absorbed_stay_however_old_they_are():
    """The lower one of K* and the first younger marker counts."""
    trimming = MarkerTrimming(Offset(0), Offset(100), DAY_MS)
    trimming.due(NOW_MS)
    assert trimming.younger_found(Offset(1000)) == [TrimMarkers(Offset(100))]


def test_the_log_is_asked_at_most_once_a_minute_and_never_for_nothing():
    """A partition with nothing to delete costs no question."""
    trimming = MarkerTrimming(Offset(7), Offset(7), DAY_MS)
    assert trimming.due(NOW_MS) == []
    trimming.covered(Offset(9))
    assert trimming.due(NOW_MS) == [FindYounger(DAY_MS)]
    trimming.covered(Offset(11))
    assert trimming.due(NOW_MS + LOOK_MS - 1) == []
    assert trimming.due(NOW_MS + LOOK_MS) == [FindYounger(DAY_MS)]


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, LOOK_MS)), max_size=30
    )
)
def test_no_history_deletes_a_marker_that_is_young_or_not_absorbed(
    steps: list[tuple[int, int, int]],
):
    """Whatever is absorbed and found, in whatever order, the bounds of E9 hold."""
    trimming = MarkerTrimming(Offset(0), Offset(0), DAY_MS)
    now_ms, covered, young, trimmed = NOW_MS, 0, 0, 0
    for absorbed, older, elapsed_ms in steps:
        now_ms += elapsed_ms
        covered = max(covered, absorbed)
        trimming.covered(Offset(absorbed))
        young = max(young, older)
        for effect in trimming.due(now_ms):
            assert effect == FindYounger(DAY_MS)
            for trim in trimming.younger_found(Offset(young)):
                assert trimmed < trim.before <= min(covered, young)
                trimmed = trim.before
