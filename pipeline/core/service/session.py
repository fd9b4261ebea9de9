"""A client's side of the conversation with the owner of a log: numbers, repeats, time-outs.

*Source*: protocols.md C1b.
*Invariants*: a request keeps its number and its bytes' meaning however often it is sent; a number
is acknowledged only when its answer is here or will not be asked for again; each request ends
exactly once, answered or given up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stilltide.schemas.coordinator.transactions import Change

REQUEST_TIMEOUT_MS_MAX = 10 * 60 * 1000
"""Far below the hour after which a coordinator forgets a client."""


class Numbered(Protocol):
    """A request, as far as a session knows it."""

    @property
    def number(self) -> int:
        """1, 2, ... in the order of asking."""
        ...


B = TypeVar("B")
R = TypeVar("R", bound=Numbered)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Send(Generic[R]):
    """Effect: write the request to its topic."""

    request: R


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Effect: tell the caller that no answer came in time; whether it took effect is unknown."""

    number: int


@dataclass(slots=True)
class _Pending(Generic[B]):
    body: B
    resend_ms: float
    wait_ms: float
    give_up_ms: float


class ClientSession(Generic[B, R, A]):
    """One client process and one owner.

    Args:
        client_id: name + 16 random bytes.
        reply_partition: partition of txn-responses the client listens on.
        make: a request from client id, number, acknowledged number, reply partition and body.
        resend_ms: first repeat of an unanswered request; doubles up to `resend_ms_max`.
    """

    def __init__(
        self,
        client_id: bytes,
        reply_partition: int,
        make: Callable[[bytes, int, int, int, B], R],
        *,
        resend_ms: float = 1000,
        resend_ms_max: float = 8000,
    ) -> None:
        self.client_id = client_id
        self._reply_partition = reply_partition
        self._make = make
        self._resend_ms = resend_ms
        self._resend_ms_max = resend_ms_max
        self._last = 0
        self._first_change: int | None = None
        self._due_ms = 0.0
        self._pending: dict[int, _Pending[B]] = {}  # by number, oldest first

    @property
    def pending(self) -> int:
        """Requests without an answer."""
        return len(self._pending)

    @property
    def acked_through(self) -> int:
        """Every request up to this number has ended; 0 while none that changes anything has.

        A question is not in the log: a coordinator that answered nothing else does not know us,
        and one who acknowledges answers that it does not know of counts as forgotten (C1b).
        """
        through = next(iter(self._pending), self._last + 1) - 1
        first = self._first_change
        return through if first is not None and first <= through else 0

    @property
    def deadline_ms(self) -> float | None:
        """When `tick` is due; None with nothing pending. May be early, never late."""
        return self._due_ms if self._pending else None

    def made(self, body: B, now_ms: float, timeout_ms: float) -> Send[R]:
        """A new request; it ends within `timeout_ms`, at most `REQUEST_TIMEOUT_MS_MAX`."""
        self._last += 1
        if self._first_change is None and isinstance(body, Change):
            self._first_change = self._last
        give_up_ms = now_ms + min(timeout_ms, REQUEST_TIMEOUT_MS_MAX)
        resend_ms = now_ms + self._resend_ms
        due_ms = min(resend_ms, give_up_ms)
        self._due_ms = min(self._due_ms, due_ms) if self._pending else due_ms
        self._pending[self._last] = _Pending(body, resend_ms, self._resend_ms, give_up_ms)
        return self._send(self._last, body)

    def answered(self, number: int, answer: A) -> A | None:
        """An answer came: the caller's, or None when the request has ended before."""
        return answer if self._pending.pop(number, None) is not None else None

    def tick(self, now_ms: float) -> list[Send[R] | GiveUp]:
        """Repeats what is due and gives up what is out of time."""
        late = [number for number, one in self._pending.items() if one.give_up_ms <= now_ms]
        for number in late:
            del self._pending[number]
        effects: list[Send[R] | GiveUp] = [GiveUp(number) for number in late]
        for number, one in self._pending.items():
            if one.resend_ms <= now_ms:
                one.wait_ms = min(2 * one.wait_ms, self._resend_ms_max)
                one.resend_ms = now_ms + one.wait_ms
                effects.append(self._send(number, one.body))
        dues = (min(one.resend_ms, one.give_up_ms) for one in self._pending.values())
        self._due_ms = min(dues, default=0.0)
        return effects

    def _send(self, number: int, body: B) -> Send[R]:
        return Send(
            self._make(self.client_id, number, self.acked_through, self._reply_partition, body)
        )
