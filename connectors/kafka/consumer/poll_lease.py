"""Who may call a consumer: its thread, or the loop while the thread has lent the consumer.

*Source*: measured: what a thread has brought is slow to touch for the loop on another processor,
and both wait for each other to let go of the interpreter. A loop that fetches for itself what is
there, a little at a time, reads a backlog in a third of the time.

*Invariants*: one of the two at a time calls the consumer; the loop never waits for the thread. The
thread takes the consumer back when the loop leaves it unused, since a client that is not polled
answers no rebalance.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_UNUSED_S = 0.1


class PollLease:
    """The right to call one consumer.

    Args:
        ordered: set when the thread is needed; whoever sets it wants the thread to go on now.

    Attributes:
        lent: whether the loop polls, and the thread rests.
    """

    def __init__(self, ordered: threading.Event) -> None:
        self._ordered = ordered
        self._lock = threading.Lock()
        self._used_at = 0.0
        self.lent = False

    @contextmanager
    def of_thread(self) -> Iterator[None]:
        """The thread calls the consumer; also while the consumer is lent, for a short call."""
        with self._lock:
            yield

    def lend(self) -> None:
        """Leaves the next polls to the loop."""
        self._used_at = time.monotonic()
        self.lent = True

    def rest(self) -> None:
        """Has the thread wait until it is needed; ends the lease if the loop does not use it."""
        self._ordered.wait(_UNUSED_S)
        if time.monotonic() - self._used_at > _UNUSED_S:
            self.lent = False

    def begin(self) -> bool:
        """Lets the loop call the consumer until `end`; False: the thread has to."""
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
        """Has the thread go on: nothing is left to read without waiting."""
        self.lent = False
        self._ordered.set()
