"""Whose turn it is to call a consumer: its thread's, or the loop's.

*Source*: measured: what a thread has brought is slow to touch for the loop on another processor,
and both wait for each other to let go of the interpreter. A loop that fetches for itself what is
there, a little at a time, reads a backlog for a third of the time.

*Invariants*: one of them at a time calls the consumer; the loop never waits for its turn. The
thread takes it back when the loop leaves it unused, since a client that is not polled answers no
rebalance.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED_S = 0.1


class PollLease:
    """Of one consumer.

    Args:
        ordered: set when the thread is needed; whoever sets it wants the thread to go on now.
    """

    def __init__(self, ordered: threading.Event) -> None:
        self._ordered = ordered
        self._lock = threading.Lock()
        self._used_at = 0.0
        self.lent = False

    @contextmanager
    def of_thread(self) -> Iterator[None]:
        """The thread's turn; also while it is lent, for what is short."""
        with self._lock:
            yield

    def lend(self) -> None:
        """Leaves the next turns to the loop."""
        self._used_at = time.monotonic()
        self.lent = True

    def rest(self) -> None:
        """Has the thread wait until it is needed, and see whether the loop uses its turns."""
        self._ordered.wait(_UNUSED_S)
        if time.monotonic() - self._used_at > _UNUSED_S:
            self.lent = False

    def begin(self) -> bool:
        """Takes the loop's turn, until `end`; False: it is the thread's now."""
        if not self.lent:
            return False
        if self._lock.acquire(blocking=False):
            self._used_at = time.monotonic()
            return True
        self.give_back()
        return False

    def end(self) -> None:
        """Ends the loop's turn."""
        self._lock.release()

    def give_back(self) -> None:
        """Has the thread go on: there is nothing left to read without waiting."""
        self.lent = False
        self._ordered.set()
