"""The offset of the first commit marker that a max read position M does not cover yet.

*Source*: docs/protocols E2 (a COMMIT is absorbed only when its end offset is at or below M).
*Invariants*: the answer is never above the true offset; it may be lower after commits were joined.
"""

from collections.abc import Iterable
from itertools import pairwise

STEPS_MAX = 1000
"""Most commits kept for one data partition; beyond, neighbouring commits are joined."""


class PendingCommits:
    """Pairs of marker offset and end offset, both ascending.

    A commit is left out if a commit with a lower marker offset has the same or a higher end
    offset: M covers the other one no earlier, so the first uncovered marker stays the same.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[int, int]] = []

    def add(self, offset: int, end_offset: int) -> None:
        """A commit marker at `offset`, of a transaction without records at or past `end_offset`."""
        steps = self._steps
        if steps and steps[-1][0] > offset:
            self._steps = _staircase(sorted([*steps, (offset, end_offset)]))
        elif not steps or steps[-1][1] < end_offset:
            steps.append((offset, end_offset))
        if len(self._steps) > STEPS_MAX:
            self._join()

    def first_above(self, max_read_position: int) -> int | None:
        """Offset of the first marker whose commit ends above the position; None: there is none."""
        return next((offset for offset, end in self._steps if end > max_read_position), None)

    def absorb(self, max_read_position: int) -> None:
        """Forgets the commits that a durable position covers."""
        self._steps = [step for step in self._steps if step[1] > max_read_position]

    def take_first(self) -> int | None:
        """Forgets all commits; returns the marker offset of the first one."""
        first = self._steps[0][0] if self._steps else None
        self._steps = []
        return first

    def _join(self) -> None:
        """Joins each two neighbours to one, with the lower marker and the higher end."""
        last = self._steps[-1:] if len(self._steps) % 2 else []
        joined = [(low[0], high[1]) for low, high in list(pairwise(self._steps))[::2]]
        self._steps = joined + last


def _staircase(steps: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of steps by offset, those whose end is higher than every end before."""
    kept: list[tuple[int, int]] = []
    for step in steps:
        if not kept or kept[-1][1] < step[1]:
            kept.append(step)
    return kept
