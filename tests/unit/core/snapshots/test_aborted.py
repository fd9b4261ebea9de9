"""The set of aborted transactions (D4)."""

import hypothesis.strategies as st
from hypothesis import given

from stilltide.pipeline.core.snapshots.aborted import AbortedSet, UnsealedIds
from stilltide.schemas.snapshots.snapshots import encode_part
from tests.support.schemas.wire import ROUND_TRIPS

IDS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), max_size=60, unique=True)
FLOORS = st.dictionaries(st.integers(0, 2), st.integers(0, 300), max_size=3)


@ROUND_TRIPS
@given(IDS, FLOORS, FLOORS)
def test_what_was_added_stays_hidden(
    ids: list[tuple[int, int]], floors: dict[int, int], later: dict[int, int]
):
    """E5: floors hide what they let go of, and nothing above them that was not added."""
    aborted = AbortedSet(floors)
    for one in ids:
        aborted.add(*one)
    aborted.raise_floors(later)
    for prune in (False, True):
        if prune:
            aborted.prune()
        for coordinator in range(3):
            floor = max(floors.get(coordinator, 0), later.get(coordinator, 0))
            hidden = {one for one in range(301) if aborted.hides(coordinator, one)}
            added = {sequence for one, sequence in ids if one == coordinator}
            assert hidden == added | set(range(floor))
    held = [one for one in ids if one[1] >= aborted.floors.get(one[0], 0)]
    assert len(aborted) == len(held)
    assert all(aborted.holds(*one) for one in held)


@ROUND_TRIPS
@given(IDS, FLOORS)
def test_unsealed_ids_count_their_bytes(ids: list[tuple[int, int]], floors: dict[int, int]):
    """E2: a part is never longer than was counted, also when floors took some of its ids."""
    unsealed = UnsealedIds({})
    for one in ids:
        unsealed.add(*one, unsealed.cost(*one))
    kept = unsealed.above(floors)
    expected: dict[int, list[int]] = {}
    for coordinator, sequence in ids:
        if sequence >= floors.get(coordinator, 0):
            expected.setdefault(coordinator, []).append(sequence)
    assert kept.ids == expected
    for one in (unsealed, kept):
        assert len(encode_part(one.ids)) <= one.bytes + len(encode_part({}))
