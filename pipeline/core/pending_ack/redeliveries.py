"""Messages that wait to be delivered again, at once or after a delay."""

from collections import deque
from typing import Generic, TypeVar

P = TypeVar("P")


class Redeliveries(Generic[P]):
    """Keeps messages until they are due.

    Args:
        delay_ms: time from `later` to the next delivery.

    Attributes:
        waiting: due time and message by offset; a removed entry is not delivered.
    """

    def __init__(self, delay_ms: float) -> None:
        self._delay_ms = delay_ms
        self.waiting: dict[int, tuple[float, P]] = {}
        self._due: deque[tuple[float, int]] = deque()
        self._at_once: deque[int] = deque()

    @property
    def deadline_ms(self) -> float | None:
        """When `due` returns something; may be early, never late. None: nothing waits."""
        if self._at_once:
            return 0.0
        return self._due[0][0] if self._due else None

    def later(self, offset: int, payload: P, now_ms: float) -> None:
        """Keeps a message until the delay has passed; `now_ms` never goes back."""
        due_ms = now_ms + self._delay_ms
        self.waiting[offset] = due_ms, payload
        self._due.append((due_ms, offset))

    def at_once(self, offset: int, payload: P) -> None:
        """Keeps a message until the next call of `due`."""
        self.waiting[offset] = 0.0, payload
        self._at_once.append(offset)

    def due(self, now_ms: float) -> list[tuple[int, P]]:
        """Removes and returns the messages that are due, with their offsets."""
        while self._due and self._due[0][0] <= now_ms:
            self._at_once.append(self._due.popleft()[1])
        found: list[tuple[int, P]] = []
        while self._at_once:
            offset = self._at_once.popleft()
            due = self.waiting.get(offset)
            if due is not None and due[0] <= now_ms:
                del self.waiting[offset]
                found.append((offset, due[1]))
        return found
