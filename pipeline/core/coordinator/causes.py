"""Why the last aborted transactions of a coordinator were aborted.

*Source*: docs/protocols C12.
*Invariants*: a cause that is not known is forgotten, never guessed; only transactions that others
than their clients have aborted take room, and their number is bounded.
"""

from stilltide.schemas.coordinator.transactions import AbortCause, RecentAborts

CAUSES_MAX = 1000
"""Transactions that were not aborted by their clients and are remembered; some 6 kB of a base."""

_SLACK = 100
"""So many more are held before the lowest are forgotten together."""


class AbortCauses:
    """The causes of aborts; the caller knows which transactions have aborted.

    Attributes:
        known_from: the first sequence whose cause is remembered.
    """

    def __init__(self) -> None:
        self.known_from = 0
        self._causes: dict[int, AbortCause] = {}

    def aborted(self, sequence: int, cause: AbortCause) -> None:
        """A transaction is decided to abort, by another than its client."""
        if sequence < self.known_from:
            return
        self._causes[sequence] = cause
        if len(self._causes) >= CAUSES_MAX + _SLACK:
            by_sequence = sorted(self._causes)
            forgotten = by_sequence[: len(by_sequence) - CAUSES_MAX]
            for one in forgotten:
                del self._causes[one]
            self.known_from = forgotten[-1] + 1

    def of(self, sequence: int) -> AbortCause | None:
        """Why an aborted transaction was aborted; None: that is forgotten."""
        if sequence < self.known_from:
            return None
        return self._causes.get(sequence, AbortCause.CLIENT)

    def content(self) -> RecentAborts:
        """A copy, for a base (C8) or an answer."""
        return RecentAborts(self.known_from, tuple(sorted(self._causes.items())))

    def replace(self, content: RecentAborts | None, next_sequence: int) -> None:
        """Takes over a base's content; None: the base of an earlier version, without causes."""
        self.known_from, causes = content or RecentAborts(next_sequence, ())
        self._causes = dict(causes)
