"""Decides whether a consumer's thread or the event loop may call the consumer.

*Source*: measured. Objects that the thread has made are slow to access for the loop on another
processor, and thread and loop wait for each other's interpreter lock. A loop that polls by itself,
a few records at a time, reads a backlog in a third of the time.

*Invariants*: either the thread or the loop calls the consumer, never both at once; the loop never
waits for the thread. The thread takes back a consumer that the loop does not use, since a client
that is not polled answers no rebalance.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED_S = 0.1


class PollLease:
    """The right to call one consumer.

    Args:
        ordered: the event that wakes the thread: an order waits, or the lease has ended.

    Attributes:
        lent: whether the loop polls and the thread rests.
    """

    def __init__(self, ordered: threading.Event) -> None:
        self._ordered = ordered
        self._lock = threading.Lock()
        self._used_at = 0.0
        self.lent = False

    @contextmanager
    def of_thread(self) -> Iterator[None]:
        """Holds the consumer for calls of the thread; while it is lent, for a short call only."""
        with self._lock:
            yield

    def lend(self) -> None:
        """Lends the consumer to the loop for the next polls."""
        self._used_at = time.monotonic()
        self.lent = True

    def rest(self) -> None:
        """Lets the thread wait until it is needed; ends a lease that the loop does not use."""
        self._ordered.wait(_UNUSED_S)
        if time.monotonic() - self._used_at > _UNUSED_S:
            self.lent = False

    def begin(self) -> bool:
        """Lets the loop call the consumer until `end`; False: the loop may not call it now."""
        if not self.lent:
            return False
        if self._lock.acquire(blocking=False):
            self._used_at = time.monotonic()
            return True
        self.give_back()
        return False

    def end(self) -> None:
        """Ends the loop's calls."""
        self._lock.release()

    def give_back(self) -> None:
        """Ends the lease; the thread polls again."""
        self.lent = False
        self._ordered.set()
