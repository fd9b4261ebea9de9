"""Messages that failed: when they are delivered again, and when no more.

*Source*: docs/protocols G2.

*Invariants*:
- A message is never delivered again before its back-off has passed.
- A message is delivered at most `deliveries_max` times; then it becomes a dead letter.
- A delivery fails once: a message that waits to be delivered again may still be acknowledged, and
  the end of that attempt counts no delivery.
- A message that cannot be decoded is a dead letter at once, and never handed over again.
- Only messages that are not acknowledged are remembered.
"""

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeAlias, TypeVar

P = TypeVar("P")

ERROR_BYTES_MAX = 1024
"""Longest text that is kept of an error, in bytes of UTF-8; the rest is cut off."""

_UNSORTED_MAX = 64


@dataclass(frozen=True, slots=True)
class RedeliveryPolicy:
    """The back-off of messages that fail, and how often they are delivered.

    Attributes:
        first_ms: time from the first failure to the next delivery.
        factor: factor from one back-off to the next, >= 1.
        max_ms: longest back-off.
        deliveries_max: deliveries after which a message becomes a dead letter; may be infinite.
    """

    first_ms: float
    factor: float = 1.0
    max_ms: float = math.inf
    deliveries_max: float = math.inf


@dataclass(frozen=True, slots=True)
class Redeliver(Generic[P]):
    """Effect: hand the message over again; `deliveries` counts this time, too."""

    payload: P
    deliveries: int


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[P]):
    """Effect: move the message to the dead-letter topic in a transaction that acknowledges it.

    Attributes:
        payload: the message.
        deliveries: how often the message was delivered.
        error: why the last delivery failed, at most `ERROR_BYTES_MAX` bytes.
    """

    payload: P
    deliveries: int
    error: str


Redelivery: TypeAlias = Redeliver[P] | DeadLetter[P]
"""What becomes of a message whose time has come."""


class _Failures(NamedTuple):
    """The failures of one message: deliveries, the last back-off, and the last error.

    `is_out`: whether the message was delivered again since the last failure. `undecodable`: whether
    the application cannot be given the message.
    """

    deliveries: int
    delay_ms: float
    error: str
    is_out: bool = False
    undecodable: bool = False


class Redeliveries(Generic[P]):
    """Keeps messages until they are due, and counts their deliveries.

    Args:
        policy: back-off and number of deliveries.

    Attributes:
        waiting: due time and message by offset; a removed entry is not delivered.
    """

    def __init__(self, policy: RedeliveryPolicy) -> None:
        self._policy = policy
        self.waiting: dict[int, tuple[float, P]] = {}
        self._failures: dict[int, _Failures] = {}
        self._due: list[tuple[float, int]] = []  # a heap; entries of removed messages remain

    @property
    def deadline_ms(self) -> float | None:
        """When `due` returns something; may be early, never late. None: nothing waits."""
        return self._due[0][0] if self._due else None

    def has_failed(self, offset: int) -> bool:
        """Whether the message was delivered before, and failed."""
        return offset in self._failures

    def is_undecodable(self, offset: int) -> bool:
        """Whether the message is a dead letter that the application was never given."""
        failures = self._failures.get(offset)
        return failures is not None and failures.undecodable

    def undecodable(self, offset: int, payload: P, now_ms: float, error: str) -> None:
        """Keeps a message that cannot be decoded as a dead letter that is due at once."""
        before = self._failures.get(offset)
        deliveries = before.deliveries + 1 if before else 1
        delay_ms = min(self._policy.first_ms, self._policy.max_ms)
        self._failures[offset] = _Failures(deliveries, delay_ms, bounded(error), undecodable=True)
        self._keep(offset, payload, now_ms)

    def failed(self, offset: int, payload: P, now_ms: float, error: str) -> None:
        """Keeps a message whose delivery has failed until its back-off has passed (G2).

        A dead letter that could not be sent fails as well; its count and error stay as they are.
        So do those of a message that was acknowledged while it waited, in vain.
        """
        policy, before = self._policy, self._failures.get(offset)
        if before is None:
            failures = _Failures(1, min(policy.first_ms, policy.max_ms), bounded(error))
        else:
            delay_ms = min(before.delay_ms * policy.factor, policy.max_ms)
            if before.deliveries >= policy.deliveries_max or not before.is_out:
                failures = before._replace(delay_ms=delay_ms)
            else:
                failures = _Failures(before.deliveries + 1, delay_ms, bounded(error))
        self._failures[offset] = failures
        is_new_dead_letter = failures.deliveries >= policy.deliveries_max and (
            before is None or before.deliveries < failures.deliveries
        )
        self._keep(offset, payload, now_ms if is_new_dead_letter else now_ms + failures.delay_ms)

    def at_once(self, offset: int, payload: P) -> None:
        """Keeps a message that was never delivered until the next call of `due`."""
        self._keep(offset, payload, 0.0)

    def take_back(self, offset: int) -> None:
        """The application did not get the message that was to be handed over again."""
        if failures := self._failures.get(offset):
            self._failures[offset] = failures._replace(is_out=False)

    def forget(self, offset: int) -> None:
        """The message is acknowledged."""
        self._failures.pop(offset, None)

    def due(self, now_ms: float) -> list[tuple[int, Redelivery[P]]]:
        """Removes and returns the messages that are due, with their offsets."""
        redelivered: list[tuple[int, Redelivery[P]]] = []
        while self._due and self._due[0][0] <= now_ms:
            _, offset = heappop(self._due)
            waiting = self.waiting.get(offset)
            if waiting is not None and waiting[0] <= now_ms:
                del self.waiting[offset]
                redelivered.append((offset, self._redelivery(offset, waiting[1])))
        return redelivered

    def _redelivery(self, offset: int, payload: P) -> Redelivery[P]:
        failures = self._failures.get(offset)
        if failures is None:
            return Redeliver(payload, 1)
        if failures.undecodable or failures.deliveries >= self._policy.deliveries_max:
            return DeadLetter(payload, failures.deliveries, failures.error)
        self._failures[offset] = failures._replace(is_out=True)
        return Redeliver(payload, failures.deliveries + 1)

    def _keep(self, offset: int, payload: P, due_ms: float) -> None:
        self.waiting[offset] = due_ms, payload
        heappush(self._due, (due_ms, offset))
        if len(self._due) > 2 * len(self.waiting) + _UNSORTED_MAX:
            self._due = [(due_ms, it) for it, (due_ms, _) in self.waiting.items()]
            heapify(self._due)


def bounded(error: str) -> str:
    """The beginning of a text that fits into `ERROR_BYTES_MAX` bytes."""
    kept = error[:ERROR_BYTES_MAX].encode(errors="replace")[:ERROR_BYTES_MAX]
    return kept.decode(errors="ignore")
