"""When the coordinator examines a transaction: at its time-out, or to repeat a failed step.

*Source*: docs/protocols C4, C7.
*Invariants*: the heap holds at most 1 000 entries more than twice the number of transactions.
"""

import heapq
from collections.abc import Container, Sized
from typing import Protocol


class _Unended(Container[int], Sized, Protocol):
    """Sequences of the transactions that have not ended."""


class DueTransactions:
    """Sequences of transactions, ordered by when each one is due.

    Args:
        wall_ahead_ms: wall time less the time of every `now_ms`.
    """

    def __init__(self, wall_ahead_ms: int = 0) -> None:
        self._wall_ahead_ms = wall_ahead_ms
        self._due: list[tuple[int, int]] = []  # (when_ms, sequence), a heap

    def __len__(self) -> int:
        """How many entries are held, including those of transactions that have ended."""
        return len(self._due)

    @property
    def first_ms(self) -> int | None:
        """When the first transaction is due; None when there is none."""
        return self._due[0][0] if self._due else None

    def opened_ms(self, wall_ms: int, now_ms: int) -> int:
        """When a transaction was opened, by the clock of `now_ms`; its record has the wall time.

        A moment that is still to come is the wrong clock of an earlier owner: it counts as now.
        """
        return min(wall_ms - self._wall_ahead_ms, now_ms)

    def add(self, when_ms: int, sequence: int, held: _Unended) -> None:
        """Makes a transaction due at `when_ms`; `held` are all transactions that have not ended."""
        if len(self._due) > 2 * len(held) + 1000:  # most of them ended long before their time
            self._due = [due for due in self._due if due[1] in held]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (when_ms, sequence))

    def take(self, now_ms: int) -> int | None:
        """Removes and returns the next transaction that is due; None when there is none."""
        if not self._due or self._due[0][0] > now_ms:
            return None
        return heapq.heappop(self._due)[1]


class TimingOut:
    """Transactions whose time-outs are on their way, each with its share of a bound (C16)."""

    def __init__(self) -> None:
        self._shares: dict[int, int] = {}
        self.total = 0

    def __contains__(self, sequence: int) -> bool:
        """Whether the time-out of this transaction is on its way."""
        return sequence in self._shares

    def add(self, sequence: int, share: int) -> None:
        """The time-out of a transaction is on its way."""
        self._shares[sequence] = share
        self.total += share

    def remove(self, sequence: int) -> None:
        """The transaction has ended, or is tried again later."""
        self.total -= self._shares.pop(sequence, 0)
