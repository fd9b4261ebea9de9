"""Decides when a client's lingering producer sends the records that it has gathered.

*Source*: measured. With few transactions, a linger of 5 ms was half of the time of each: no other
records came meanwhile. Without linger, the producer sent so many small requests that they took the
whole time of both processors.

*Invariant*: the producer's linger is the longest wait; `Gathering` only shortens that wait.
"""

import asyncio
from collections.abc import Callable


class Gathering:
    """Knows which transactions send and which wait, and ends the producer's linger in time.

    The linger ends when no transaction is about to send, and at least half of the writing
    transactions wait for their records to be durable. The other half, whose commits are under way,
    sends again while the commits of this half are. So two halves take turns, and neither is so
    small that its requests cost more than its records.

    Args:
        flush_soon: makes the lingering producer send its gathered records.
    """

    def __init__(self, flush_soon: Callable[[], None]) -> None:
        self._flush_soon = flush_soon
        self._loop = asyncio.get_running_loop()
        self._writing = set[object]()
        self._sending = set[object]()
        self._waiting = set[object]()
        self._due = False

    def sends(self, txn: object) -> None:
        """A transaction is about to send its first record to a partition."""
        self._writing.add(txn)
        self._sending.add(txn)

    def waits(self, txn: object) -> None:
        """The transaction sends no more until all of its sent records are durable."""
        self._sending.discard(txn)
        self._writing.add(txn)
        self._waiting.add(txn)
        if not self._due:  # transactions woken in the same turn may be about to send
            self._due = True
            self._loop.call_soon(self._look)

    def durable(self, txn: object) -> None:
        """All sent records are durable; a transaction that did not wait for them is idle now."""
        if txn in self._sending:
            self.ended(txn)
        else:
            self._waiting.discard(txn)

    def ended(self, txn: object) -> None:
        """The transaction is over, or idle."""
        for those in (self._writing, self._sending, self._waiting):
            those.discard(txn)

    def _look(self) -> None:
        self._due = False
        if self._waiting and not self._sending and 2 * len(self._waiting) >= len(self._writing):
            self._waiting.clear()
            self._flush_soon()
