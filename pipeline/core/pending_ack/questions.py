"""Questions of one member to the store: one at a time, spaced by `ATTACH`."""

from dataclasses import dataclass

from stilltide.schemas.retry import ATTACH


@dataclass(frozen=True, slots=True)
class Ask:
    """Effect: ask the store; pass the answer to `described` with this number."""

    number: int


class Questions:
    """Numbers the questions, ascending."""

    def __init__(self) -> None:
        self._asked = 0
        self._asking = False
        self._ask_at_ms = 0.0

    @property
    def asked(self) -> int:
        """The number of the last question; 0 before the first."""
        return self._asked

    @property
    def deadline_ms(self) -> float | None:
        """When the next question may be asked; None while an answer is awaited."""
        return None if self._asking else self._ask_at_ms

    def tick(self, now_ms: float) -> list[Ask]:
        """Asks, unless an answer is awaited or the last one came less than `ATTACH` ago."""
        if self._asking or now_ms < self._ask_at_ms:
            return []
        self._asking = True
        self._asked += 1
        return [Ask(self._asked)]

    def answered(self, now_ms: float) -> None:
        """Takes note that the question has ended, with an answer or without."""
        self._asking = False
        self._ask_at_ms = now_ms + ATTACH.wait_ms()
