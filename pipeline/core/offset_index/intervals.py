"""Sets of offsets as few intervals: union, difference, size, membership.

*Source*: docs/protocols I6. *Invariants*: intervals `[first, end)` ascend, none is empty, no two
touch, so that equal sets are equal values. Each operation costs a walk, membership a bisection.
"""

from bisect import bisect_right
from collections.abc import Iterable

from stilltide.schemas.values import EndOffset, Offset, Range, Ranges

NOTHING: Ranges = ()


def interval(first: int, end: int) -> Ranges:
    """The set of the one interval `[first, end)`, or the empty set."""
    return (Range(Offset(first), EndOffset(end)),) if first < end else NOTHING


def below(end: int) -> Ranges:
    """Every offset below `end`."""
    return interval(0, end)


def union(*sets: Iterable[Range]) -> Ranges:
    """The offsets that are in any of the sets."""
    found: list[Range] = []
    for first, end in sorted(one for intervals in sets for one in intervals):
        if found and first <= found[-1].end:
            found[-1] = Range(found[-1].first, max(found[-1].end, end))
        else:
            found.append(Range(first, end))
    return tuple(found)


def minus(intervals: Ranges, taken: Ranges) -> Ranges:
    """The offsets in `intervals` that are not in `taken`."""
    found: list[Range] = []
    for first, end in intervals:
        at: int = first
        for taken_first, taken_end in taken:
            if taken_end <= at:
                continue
            if taken_first >= end:
                break
            found += interval(at, taken_first)
            at = taken_end
        found += interval(at, end)
    return tuple(found)


def size(intervals: Ranges) -> int:
    """How many offsets are in the set."""
    return sum(end - first for first, end in intervals)


def holds(intervals: Ranges, offset: int) -> bool:
    """Whether the offset is in the set."""
    return first_outside(intervals, offset) > offset


def first_outside(intervals: Ranges, offset: int) -> int:
    """The lowest offset at or above `offset` that is not in the set."""
    index = bisect_right(intervals, offset, key=lambda one: one.first) - 1
    return max(offset, intervals[index].end) if index >= 0 else offset
