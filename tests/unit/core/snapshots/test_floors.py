"""When an aborted id is needed no more (E5)."""

from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given

from stilltide.pipeline.core.snapshots.aborted import PAIRS_MAX, TrimPairs, raised
from stilltide.schemas.snapshots.snapshots import TrimPair
from stilltide.schemas.values import EndOffset
from tests.support.schemas.wire import ROUND_TRIPS


def test_a_pair_matures_when_the_log_starts_at_its_end():
    """Not one record earlier; the others wait."""
    pairs = TrimPairs()
    pairs.add(EndOffset(10), {0: 1})
    pairs.add(EndOffset(20), {0: 2})
    assert pairs.matured(EndOffset(9)) == []
    assert pairs.matured(EndOffset(10)) == [TrimPair(EndOffset(10), {0: 1})]
    assert pairs.as_tuple() == (TrimPair(EndOffset(20), {0: 2}),)


def test_where_nothing_was_written_the_newer_low_watermarks_count():
    """A partition at rest keeps one pair, of what has ended meanwhile."""
    pairs = TrimPairs()
    pairs.add(EndOffset(10), {0: 1})
    pairs.add(EndOffset(10), {0: 2})
    pairs.add(EndOffset(9), {0: 3})
    assert pairs.as_tuple() == (TrimPair(EndOffset(10), {0: 3}),)


def test_without_low_watermarks_there_is_no_pair():
    """The first probe of a writer knows none that are old enough."""
    pairs = TrimPairs()
    pairs.add(EndOffset(10), {})
    assert not pairs


@ROUND_TRIPS
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=200))
def test_pairs_are_few_and_the_outer_ones_stay(steps: list[int]):
    """The first is what retention reaches next, the last what it reaches in the end."""
    pairs, end = TrimPairs(), 0
    for number, step in enumerate(steps):
        end += step
        pairs.add(EndOffset(end), {0: number + 1})
    kept = pairs.as_tuple()
    assert len(kept) == min(len(steps), PAIRS_MAX)
    assert (kept[0].end_offset, kept[-1].end_offset) == (steps[0], end)
    assert all(one.end_offset < next_one.end_offset for one, next_one in pairwise(kept))
    assert all(one.floors[0] < next_one.floors[0] for one, next_one in pairwise(kept))


def test_floors_only_rise():
    """Of each coordinator by itself."""
    floors = {0: 5, 1: 5}
    raised(floors, {0: 3, 1: 9, 2: 1})
    assert floors == {0: 5, 1: 9, 2: 1}
