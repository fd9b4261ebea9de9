"""A wall clock that changes only when a test sets it."""


class MemoryClock:
    """A `Clock`."""

    def __init__(self, now_ms: int = 0) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Milliseconds since 1970, as set."""
        return self._now_ms

    def set(self, now_ms: int) -> None:
        """Sets the time, also back, since a wall clock may be set back."""
        self._now_ms = now_ms

    def advance(self, by_ms: int) -> None:
        """Moves the time on by `by_ms` >= 0."""
        assert by_ms >= 0
        self._now_ms += by_ms
