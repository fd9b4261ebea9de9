"""Sets of offsets as sorted, disjoint ranges: a set that changes, and sets that are plain values.

*Source*: docs/protocols G (a cursor and a compact set of individually acknowledged offsets), I6.
*Invariants*: ranges `[first, end)` ascend, none is empty, no two touch, so that equal sets are
equal values; a `RangeSet` never has more than `ranges_max`, and a change that would make more is
refused. Membership costs a bisection.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
from sys import maxsize

from stilltide.schemas.values import EndOffset, Offset, Range, Ranges


class RangesFullError(Exception):
    """The set would fall into more ranges than it may hold; nothing was changed."""


def runs_of(offsets: Iterable[int]) -> Iterator[Range]:
    """Distinct offsets as ascending ranges `[first, end)`; consecutive offsets make one range."""
    ascending = sorted(offsets)
    if not ascending:
        return
    first = end = ascending[0]
    for offset in ascending:
        if offset != end:
            yield Range(Offset(first), EndOffset(end))
            first = offset
        end = offset + 1
    yield Range(Offset(first), EndOffset(end))


class RangeSet:
    """A set of offsets; a look-up costs a bisection, a change also moves the ranges after it.

    Args:
        ranges: ranges `[first, end)` in any order, which may overlap.
        ranges_max: most ranges held.
    """

    def __init__(
        self, ranges: Iterable[tuple[int, int]] = (), *, ranges_max: int = 100_000
    ) -> None:
        self.ranges_max = ranges_max
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.add(first, end)

    @property
    def range_count(self) -> int:
        """How many ranges there are."""
        return len(self._firsts)

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __contains__(self, offset: int) -> bool:
        ends = self._ends
        if not ends or offset >= ends[-1]:  # the most frequent case: a new offset
            return False
        index = bisect_right(self._firsts, offset)
        return index > 0 and offset < ends[index - 1]

    def __iter__(self) -> Iterator[Range]:
        """The ranges in ascending order."""
        return (
            Range(Offset(first), EndOffset(end))
            for first, end in zip(self._firsts, self._ends, strict=True)
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self._firsts == other._firsts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment] - it changes

    def __repr__(self) -> str:
        return f"RangeSet({[tuple(one) for one in self]})"

    def ranges(self) -> tuple[Range, ...]:
        """The ranges in ascending order."""
        return tuple(self)

    def end_of(self, offset: int) -> EndOffset:
        """The lowest offset at or above `offset` that is not in the set."""
        index = bisect_right(self._firsts, offset) - 1
        return EndOffset(max(offset, self._ends[index]) if index >= 0 else offset)

    def count_below(self, offset: int) -> int:
        """How many offsets below `offset` are in the set; costs a walk over their ranges."""
        index = bisect_left(self._firsts, offset)
        ends = sum(min(end, offset) for end in self._ends[:index])
        return ends - sum(self._firsts[:index])

    def add(self, first: int, end: int) -> None:
        """Adds `[first, end)`, which may be empty; raises `RangesFullError`."""
        if first >= end:
            return
        low = bisect_left(self._ends, first)  # the first range that touches or comes after
        high = bisect_right(self._firsts, end)  # after the last range that touches
        if low < high:
            first = min(first, self._firsts[low])
            end = max(end, self._ends[high - 1])
        self._replace(low, high, [(first, end)])

    def remove(self, first: int, end: int) -> None:
        """Removes `[first, end)`, present or not; raises `RangesFullError`."""
        if first >= end:
            return
        low = bisect_right(self._ends, first)  # the first range that ends after `first`
        high = bisect_left(self._firsts, end)  # after the last range that begins before `end`
        if low >= high:
            return
        parts = [(self._firsts[low], first), (end, self._ends[high - 1])]
        self._replace(low, high, [part for part in parts if part[0] < part[1]])

    def trim_below(self, offset: int) -> None:
        """Removes every offset below `offset`."""
        if self._firsts and self._firsts[0] < offset:
            self.remove(self._firsts[0], offset)

    def trim_from(self, offset: int) -> None:
        """Removes every offset at or above `offset`."""
        if self._ends and self._ends[-1] > offset:
            self.remove(offset, self._ends[-1])

    def _replace(self, low: int, high: int, parts: list[tuple[int, int]]) -> None:
        if len(self._firsts) - (high - low) + len(parts) > self.ranges_max:
            raise RangesFullError(f"more than {self.ranges_max} ranges")
        self._firsts[low:high] = [first for first, _ in parts]
        self._ends[low:high] = [end for _, end in parts]


NOTHING: Ranges = ()


def interval(first: int, end: int) -> Ranges:
    """The set of the one interval `[first, end)`, or the empty set."""
    return (Range(Offset(first), EndOffset(end)),) if first < end else NOTHING


def below(end: int) -> Ranges:
    """Every offset below `end`."""
    return interval(0, end)


def union(*sets: Iterable[Range]) -> Ranges:
    """The offsets that are in any of the sets."""
    # In ascending order each range is added at the end, so that large sets cost no squares.
    return RangeSet(sorted(chain(*sets)), ranges_max=maxsize).ranges()


def minus(intervals: Ranges, taken: Ranges) -> Ranges:
    """The offsets in `intervals` that are not in `taken`."""
    left = RangeSet(intervals, ranges_max=maxsize)
    for first, end in taken:
        left.remove(first, end)
    return left.ranges()


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
