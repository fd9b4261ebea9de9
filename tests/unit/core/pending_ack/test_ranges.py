"""A range set against a plain set of offsets (G)."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.pipeline.core.offset_index.intervals import RangeSet, RangesFullError, runs_of

OFFSETS = st.integers(0, 30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["add", "remove"]), OFFSETS, OFFSETS),
        st.tuples(st.just("trim_below"), OFFSETS, st.just(0)),
    ),
    max_size=30,
)


def offsets(ranges: RangeSet) -> set[int]:
    """Every offset of a range set."""
    return {offset for first, end in ranges for offset in range(first, end)}


@given(STEPS)
def test_it_holds_what_a_set_would_hold(steps: list[tuple[str, int, int]]):
    """Adding, removing and trimming in any order leaves exactly the offsets that a set would."""
    ranges, judge = RangeSet(), set[int]()
    for step, first, end in steps:
        if step == "add":
            ranges.add(first, end)
            judge |= set(range(first, end))
        elif step == "remove":
            ranges.remove(first, end)
            judge -= set(range(first, end))
        else:
            ranges.trim_below(first)
            judge = {offset for offset in judge if offset >= first}
        assert offsets(ranges) == judge
        assert bool(ranges) == bool(judge)
        assert ranges.count_below(first) == len([one for one in judge if one < first])


@given(STEPS)
def test_its_ranges_ascend_and_never_touch(steps: list[tuple[str, int, int]]):
    """The invariant: ascending, none empty, a gap between any two."""
    ranges = RangeSet()
    for step, first, end in steps:
        args = (first,) if step == "trim_below" else (first, end)
        getattr(ranges, step)(*args)
    held = ranges.ranges()
    assert len(held) == ranges.range_count
    assert all(first < end for first, end in held)
    assert all(a.end < b.first for a, b in pairwise(held))


@given(st.lists(st.tuples(OFFSETS, OFFSETS), max_size=8), OFFSETS, OFFSETS)
def test_look_ups_agree_with_a_set(made_of: list[tuple[int, int]], first: int, end: int):
    """Membership and the next free offset are those of a set."""
    ranges = RangeSet(made_of)
    judge = {offset for a, b in made_of for offset in range(a, b)}
    assert (first in ranges) == (first in judge)
    assert ranges.end_of(first) == next(n for n in range(first, 99) if n not in judge)


@given(st.lists(st.tuples(OFFSETS, OFFSETS), max_size=8).flatmap(st.permutations))
def test_equal_sets_are_equal_however_they_came_about(made_of: list[tuple[int, int]]):
    """Two sets of the same offsets are equal, and differ from one with another offset."""
    ranges = RangeSet(made_of)
    assert ranges == RangeSet(ranges)
    assert ranges != RangeSet([*made_of, (90, 91)])


def test_a_range_too_many_changes_nothing():
    """The bound: what would fall into more ranges than allowed is refused as a whole."""
    ranges = RangeSet([(0, 10), (20, 30)], ranges_max=2)
    for change in (lambda: ranges.add(40, 41), lambda: ranges.remove(5, 6)):
        with pytest.raises(RangesFullError):
            change()
        assert ranges.ranges() == ((0, 10), (20, 30))
    ranges.add(10, 20)
    assert ranges.ranges() == ((0, 30),)


def test_an_empty_range_is_nothing():
    """Adding or removing `[n, n)` changes nothing."""
    ranges = RangeSet([(0, 10)])
    ranges.add(20, 20)
    ranges.remove(5, 5)
    assert ranges.ranges() == ((0, 10),)


@given(st.sets(OFFSETS))
def test_runs_are_the_fewest_ranges(held: set[int]):
    """Every offset is in one of them, no two touch, and they ascend."""
    runs = list(runs_of(held))
    assert [offset for first, end in runs for offset in range(first, end)] == sorted(held)
    assert all(end < following for (_, end), (following, _) in pairwise(runs))
