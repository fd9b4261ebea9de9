"""The offset of the first commit marker that a position does not cover (E2)."""

import hypothesis.strategies as st
from hypothesis import given

from stilltide.pipeline.core.snapshots.buffer import STEPS_MAX, PendingCommits
from tests.support.schemas.wire import ROUND_TRIPS

COMMITS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=40)


def true_first(commits: list[tuple[int, int]], position: int) -> int | None:
    """The lowest offset of a commit that ends above the position."""
    return min((offset for offset, end in commits if end > position), default=None)


@ROUND_TRIPS
@given(COMMITS, st.integers(0, 50))
def test_the_first_uncovered_marker_is_the_lowest_that_ends_above(
    commits: list[tuple[int, int]], position: int
):
    """Commits may come in any order, also long after others were absorbed."""
    pending = PendingCommits()
    for offset, end in commits:
        pending.add(offset, end)
    assert pending.first_above(position) == true_first(commits, position)
    pending.absorb(position)
    assert pending.first_above(position) == true_first(commits, position)
    assert pending.take_first() == true_first(commits, position)
    assert pending.first_above(0) is None


def test_many_commits_behind_an_open_transaction_take_little_room():
    """The answer may then be too low, which costs a new writer some markers, never too high."""
    pending = PendingCommits()
    commits = [(offset, 3 * offset + 1) for offset in range(10 * STEPS_MAX)]
    for offset, end in commits:
        pending.add(offset, end)
    assert len(pending._steps) <= STEPS_MAX
    for position in range(0, commits[-1][1] + 5, 7):
        found, true = pending.first_above(position), true_first(commits, position)
        assert (found is None) == (true is None)
        assert found is None or true is None or found <= true
    assert pending.first_above(0) == 0
