"""How the last transactions of a coordinator ended, one bit for each, and why the last aborted did.

*Source*: docs/protocols C12.
*Invariants*: an outcome that is not known is forgotten, never guessed. The caller knows which
transactions have not ended; a bit says something about the others only. A cause that is not known
is forgotten, too, and the number of causes is bounded.
"""

from itertools import islice

from stilltide.schemas.coordinator.transactions import AbortCause, BaseOutcomes, RecentAborts

OUTCOME_HISTORY = 1_000_000
"""Sequences whose outcomes a coordinator keeps by default; 125 kB."""

_DROPPED_BYTES_MIN = 4096
"""Bits are dropped from the front of the history by this many bytes at least."""


class OutcomeHistory:
    """The outcomes of the last `length` sequences of one coordinator.

    Args:
        length: how many sequences below the next one are remembered.

    Attributes:
        known_from: the first sequence whose outcome is remembered, once it has one.
        commit_count, abort_count: transactions that have ended so since `count_from_here`.
    """

    def __init__(self, length: int = OUTCOME_HISTORY) -> None:
        self.known_from = 0
        self.commit_count = self.abort_count = 0
        self._length = length
        self._bits = bytearray()
        self._first = 0  # sequence of the first bit, a multiple of 8

    @property
    def size_bytes(self) -> int:
        """Bytes of the bits."""
        return len(self._bits)

    def opened(self, next_sequence: int) -> None:
        """Sequences below `next_sequence` were opened; forgets what is too long ago."""
        self.known_from = max(self.known_from, next_sequence - self._length)
        dropped = (self.known_from - self._first) // 8
        if dropped >= _DROPPED_BYTES_MIN:
            del self._bits[:dropped]
            self._first += 8 * dropped

    def count_from_here(self) -> None:
        """Counts begin: a log that was trimmed does not hold all transactions before."""
        self.commit_count = self.abort_count = 0

    def ended(self, sequence: int, *, committed: bool) -> None:
        """A transaction has ended."""
        if committed:
            self.commit_count += 1
            self.committed(sequence)
        else:
            self.abort_count += 1

    def committed(self, sequence: int) -> None:
        """A transaction has committed; every other one that ended has aborted."""
        place = sequence - self._first
        if sequence < self.known_from:
            return
        lacking = place // 8 + 1 - len(self._bits)
        if lacking > 0:
            self._bits.extend(bytes(lacking))
        self._bits[place // 8] |= 1 << place % 8

    def has_committed(self, sequence: int) -> bool | None:
        """How an ended transaction ended; None: the outcome is forgotten (C12)."""
        if sequence < self.known_from:
            return None
        place = sequence - self._first
        return place // 8 < len(self._bits) and bool(self._bits[place // 8] >> place % 8 & 1)

    def content(self) -> BaseOutcomes:
        """A copy for a base (C8)."""
        return BaseOutcomes(
            self.known_from, bytes(self._bits[(self.known_from - self._first) // 8 :])
        )

    def replace(self, content: BaseOutcomes, next_sequence: int) -> None:
        """Takes over a base's content."""
        self.known_from, bits = content
        self._first, self._bits = self.known_from // 8 * 8, bytearray(bits)
        self.opened(next_sequence)


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
        """Takes over a base's content."""
        self._causes = dict(content)

    def _last(self, count: int) -> RecentAborts:
        return tuple(islice(self._causes.items(), max(0, len(self._causes) - count), None))
