"""A client's session with the owner of a log: numbers, repetitions and time-outs of requests.

*Source*: docs/protocols C1b.
*Invariants*: a request keeps its number and its body however often it is sent; a number is
acknowledged only after its answer has arrived or its request was given up; each request ends
exactly once, answered or given up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from stilltide.schemas.coordinator.transactions import Change
from stilltide.schemas.retry import REQUEST, Retry
from stilltide.schemas.service.envelopes import Request

REQUEST_TIMEOUT_MS_MAX = 10 * 60 * 1000
"""The longest time-out of a request, far below the hour after which a client is forgotten."""


B = TypeVar("B")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Send(Generic[B]):
    """Effect: write the request to its topic."""

    request: Request[B]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Effect: fail the caller, since no answer came in time; the request may have taken effect."""

    number: int


@dataclass(frozen=True, slots=True)
class OwnerSilent:
    """Effect: tell people that the owner has answered nothing for `waited_ms`."""

    waited_ms: float


@dataclass(slots=True)
class _Pending(Generic[B]):
    body: B
    made_ms: float
    resend_ms: float
    give_up_ms: float
    repeated: int = 0


class ClientSession(Generic[B, A]):
    """The requests of one client process to the owner of one log partition.

    Args:
        client_id: the client's secret (C15).
        reply_partition: partition of txn-responses that the client reads.
        retry: when an unanswered request is sent again.
        silent_ms: time without any answer after which people are told, once until the owner
            answers again; None: they are not told.
    """

    def __init__(
        self,
        client_id: bytes,
        reply_partition: int,
        *,
        retry: Retry = REQUEST,
        silent_ms: float | None = None,
    ) -> None:
        self.client_id = client_id
        self._reply_partition = reply_partition
        self._retry = retry
        self._silent_ms = silent_ms
        self._newest_answered = 0
        self._answered_ms = -math.inf
        self._silence_told = False
        self._last = 0
        self._first_change: int | None = None
        self._due_ms = 0.0
        self._pending: dict[int, _Pending[B]] = {}  # by number, oldest first

    @property
    def pending(self) -> int:
        """How many requests have no answer yet."""
        return len(self._pending)

    @property
    def acked_through(self) -> int:
        """Number up to which every request has ended; 0 until a request with a change has ended.

        Questions are not in the log, so a coordinator does not remember a client that only asked.
        An unknown client that acknowledges answers would count as forgotten (C1b).
        """
        through = next(iter(self._pending), self._last + 1) - 1
        first = self._first_change
        return through if first is not None and first <= through else 0

    @property
    def deadline_ms(self) -> float | None:
        """When `tick` is due; None without a pending request. May be early, never late."""
        return self._due_ms if self._pending else None

    def made(self, body: B, now_ms: float, timeout_ms: float) -> Send[B]:
        """Makes a request that ends within `timeout_ms`, at most `REQUEST_TIMEOUT_MS_MAX`."""
        self._last += 1
        if self._first_change is None and isinstance(body, Change):
            self._first_change = self._last
        give_up_ms = now_ms + min(timeout_ms, REQUEST_TIMEOUT_MS_MAX)
        resend_ms = now_ms + 1000 * self._retry.wait_s(1)
        due_ms = min(resend_ms, give_up_ms, now_ms + (self._silent_ms or math.inf))
        self._due_ms = min(self._due_ms, due_ms) if self._pending else due_ms
        self._pending[self._last] = _Pending(body, now_ms, resend_ms, give_up_ms)
        return self._send(self._last, body)

    def answered(self, number: int, answer: A, now_ms: float) -> A | None:
        """Takes an answer; returns it for the caller, or None if the request has already ended."""
        self._newest_answered = max(self._newest_answered, number)
        self._answered_ms = now_ms
        self._silence_told = False
        return answer if self._pending.pop(number, None) is not None else None

    def unanswered(self, wanted: Callable[[B], bool]) -> list[int]:
        """The numbers of the requests without an answer whose bodies are wanted."""
        return [number for number, one in self._pending.items() if wanted(one.body)]

    def forget(self, number: int) -> bool:
        """The request will never arrive; whether it had not ended yet."""
        return self._pending.pop(number, None) is not None

    def tick(self, now_ms: float) -> list[Send[B] | GiveUp | OwnerSilent]:
        """Sends requests again that are due, and gives up those whose time-out has passed."""
        silent = self._silence(now_ms)
        late = [number for number, one in self._pending.items() if one.give_up_ms <= now_ms]
        for number in late:
            del self._pending[number]
        effects: list[Send[B] | GiveUp | OwnerSilent] = [*silent, *map(GiveUp, late)]
        for number, request in self._pending.items():
            if request.resend_ms <= now_ms:
                request.repeated += 1
                request.resend_ms = now_ms + 1000 * self._retry.wait_s(request.repeated + 1)
                effects.append(self._send(number, request.body))
        dues = [min(one.resend_ms, one.give_up_ms) for one in self._pending.values()]
        self._due_ms = min([*dues, *self._silent_at_ms()], default=0.0)
        return effects

    def _silent_at_ms(self) -> list[float]:
        """When the oldest request has waited for too long; empty if that is not told.

        A request that waits while others are answered, as for readers, or for an owner that has
        more to do than it can, is no silence.
        """
        number, oldest = next(iter(self._pending.items()), (0, None))
        if self._silent_ms is None or oldest is None or self._silence_told:
            return []
        if number <= self._newest_answered:
            return []
        return [max(oldest.made_ms, self._answered_ms) + self._silent_ms]

    def _silence(self, now_ms: float) -> list[OwnerSilent]:
        due_ms = self._silent_at_ms()
        if not due_ms or now_ms < due_ms[0]:
            return []
        self._silence_told = True
        since_ms = max(next(iter(self._pending.values())).made_ms, self._answered_ms)
        return [OwnerSilent(now_ms - since_ms)]

    def again(self) -> list[Send[B]]:
        """Sends every request that has no answer again, by another way (J3)."""
        return [self._send(number, one.body) for number, one in self._pending.items()]

    def _send(self, number: int, body: B) -> Send[B]:
        return Send(
            Request(self.client_id, number, self.acked_through, self._reply_partition, body)
        )
