"""Bytes per second: how long to wait before more may be spent.

*Invariants*: over any stretch of time no more than its share, one second's worth and one batch are
spent; a loop that does not ask pays nothing.
"""

import time
from collections.abc import Callable


class Throttle:
    """A bucket of tokens that may go below zero by one batch.

    Args:
        bytes_per_s: None for no limit.
        now_s: a clock that never goes back.
    """

    def __init__(
        self, bytes_per_s: float | None, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._at_s = now_s()
        self._left = bytes_per_s or 0.0

    def spend(self, size_bytes: int) -> None:
        """These were written."""
        if self._bytes_per_s is not None:
            self._earn(self._bytes_per_s)
            self._left -= size_bytes

    def delay_s(self) -> float:
        """How long to wait; 0 when more may be spent."""
        if self._bytes_per_s is None:
            return 0.0
        self._earn(self._bytes_per_s)
        return max(0.0, -self._left / self._bytes_per_s)

    def _earn(self, bytes_per_s: float) -> None:
        """What was not spent for more than a second is lost."""
        now_s = self._now_s()
        gained = (now_s - self._at_s) * bytes_per_s
        self._left, self._at_s = min(self._left + gained, bytes_per_s), now_s
