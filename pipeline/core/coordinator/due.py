"""When which transaction needs a look: at its time-out, or when a failed step is to be repeated.

*Source*: protocols.md C4, C7.
*Invariants*: the heap holds at most twice as many entries as there are transactions, and 1 000.
"""

import heapq
from collections.abc import Container, Sized
from typing import Protocol


class _Held(Container[int], Sized, Protocol):
    """Sequences of the transactions that have not ended."""


class DueTransactions:
    """Sequences by the time of their next look."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int]] = []  # (when_ms, sequence), a heap

    def __len__(self) -> int:
        """How many looks are held, also those that no transaction needs any more."""
        return len(self._due)

    @property
    def first_ms(self) -> int | None:
        """When the first look is due; None: none is."""
        return self._due[0][0] if self._due else None

    def add(self, when_ms: int, sequence: int, held: _Held) -> None:
        """A look at a transaction is due at `when_ms`; `held`: all that have not ended."""
        if len(self._due) > 2 * len(held) + 1000:  # most of them ended long before their time
            self._due = [due for due in self._due if due[1] in held]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (when_ms, sequence))

    def take(self, now_ms: int) -> int | None:
        """The next transaction whose look is due; None: there is none."""
        if not self._due or self._due[0][0] > now_ms:
            return None
        return heapq.heappop(self._due)[1]
