"""Limits bytes per second: computes the wait before more bytes may be written.

*Invariants*: in any period at most the period's share, one second's share and one batch are
written; without a limit a call costs nothing.
"""

from collections.abc import Callable


class Throttle:
    """A token bucket that may go below zero by one batch.

    Args:
        bytes_per_s: the limit; None for no limit.
        now_s: a monotonic clock, in seconds.
    """

    def __init__(self, bytes_per_s: float | None, now_s: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_s = now_s
        self._at_s = now_s()
        self._left = bytes_per_s or 0.0

    def spend(self, size_bytes: int) -> None:
        """Counts bytes that were written."""
        if self._bytes_per_s is not None:
            self._earn(self._bytes_per_s)
            self._left -= size_bytes

    def delay_s(self) -> float:
        """The time to wait; 0: more may be written now."""
        if self._bytes_per_s is None:
            return 0.0
        self._earn(self._bytes_per_s)
        return max(0.0, -self._left / self._bytes_per_s)

    def _earn(self, bytes_per_s: float) -> None:
        """Adds the tokens earned since the last call, up to one second's share."""
        now_s = self._now_s()
        gained = (now_s - self._at_s) * bytes_per_s
        self._left, self._at_s = min(self._left + gained, bytes_per_s), now_s
