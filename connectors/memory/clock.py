"""Clocks that a test sets."""

from stilltide.connectors.clock import SystemClock


class MemoryClock:
    """A `Clock` that changes only when a test sets it."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        """Wall time, as set."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Milliseconds by which the time was moved on; `set` does not change it."""
        return self._monotonic_ms

    def set(self, now_ms: int) -> None:
        """Sets the wall time, also back, since a wall clock may be set back."""
        self._now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """Moves the time on by `by_ms` >= 0."""
        assert by_ms >= 0
        self._now_ms += by_ms
        self._monotonic_ms += by_ms


class WrongClock(SystemClock):
    """The machine's clocks, but for a wall clock that a test makes jump.

    Args:
        ahead_ms: by how much the wall clock is ahead.

    Attributes:
        ahead_ms: as above; setting it is a jump.
    """

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Wall time, wrong by `ahead_ms`."""
        return super().now_ms() + self.ahead_ms
