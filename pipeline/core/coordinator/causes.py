"""Why the last aborted transactions of a coordinator were aborted.

*Source*: docs/protocols C12.
*Invariants*: a cause that is not known is forgotten, never guessed; their number is bounded.
"""

from itertools import islice

from stilltide.schemas.coordinator.transactions import AbortCause, RecentAborts

CAUSES_MAX = 1000
"""Aborts whose cause is remembered; some 6 kB of a base."""

TOLD_MAX = 200
"""Aborts whose cause is told with a list of transactions."""

_SLACK = 100
"""So many more are held before the oldest are forgotten together."""


class AbortCauses:
    """The causes of the last aborts, in the order in which these were decided."""

    def __init__(self) -> None:
        self._causes: dict[int, AbortCause] = {}

    def aborted(self, sequence: int, cause: AbortCause) -> None:
        """A transaction is decided to abort."""
        self._causes[sequence] = cause
        if len(self._causes) >= CAUSES_MAX + _SLACK:
            self._causes = dict(self._last(CAUSES_MAX))

    def of(self, sequence: int) -> AbortCause | None:
        """Why an aborted transaction was aborted; None: that is forgotten."""
        return self._causes.get(sequence)

    def told(self) -> RecentAborts:
        """The last causes, for an answer."""
        return self._last(TOLD_MAX)

    def content(self) -> RecentAborts:
        """A copy, for a base (C8)."""
        return tuple(self._causes.items())

    def replace(self, content: RecentAborts) -> None:
        """Takes over a base's content; empty: also that of an earlier version."""
        self._causes = dict(content)

    def _last(self, count: int) -> RecentAborts:
        return tuple(islice(self._causes.items(), max(0, len(self._causes) - count), None))
