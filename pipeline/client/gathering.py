"""When the records of a client's transactions leave its producer.

*Source*: measured: a producer that lingers for 5 ms keeps few transactions waiting for company that
cannot come, which was half of what each of them took; one that never lingers sends so many small
requests that both processors are full of them.

*Invariant*: linger is the longest wait; this only ever shortens it.
"""

import asyncio
from collections.abc import Callable


class Gathering:
    """Sees who still sends and who waits, and tells the producer when gathering is of no more use.

    That is when nobody is about to send, and at least half of those who write transactions wait for
    this: the others, whose commits are under way, then come back while these are. Two groups take
    turns, and neither is so small that its requests cost more than its records.

    Args:
        hurry: has the producer, which lingers, send what it holds.
    """

    def __init__(self, hurry: Callable[[], None]) -> None:
        self._hurry = hurry
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
        """It sends no more before what it has sent is durable."""
        self._sending.discard(txn)
        self._writing.add(txn)
        self._waiting.add(txn)
        if not self._due:  # others that were woken with it may be about to send
            self._due = True
            self._loop.call_soon(self._look)

    def durable(self, txn: object) -> None:
        """All that it has sent is durable; one that did not wait for that is idle."""
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
            self._hurry()
