"""A client's choice of the way to one owner: its topic, or a direct line to the owner's worker.

*Source*: docs/protocols J1, J2, J3, J4.
*Invariants*: the line is taken only while the worker has proved that it knows the client's id (J2);
when the line ends, every request that has no answer is repeated by topic (J3); a line that rests
is closed, and an attempt that fails is followed by a pause that doubles (J4).
"""

from dataclasses import dataclass
from enum import StrEnum

from stilltide.schemas.coordinator.transactions import Greeting
from stilltide.schemas.retry import LINE, Retry


@dataclass(frozen=True, slots=True)
class LineLimits:
    """Times of a line, in ms.

    Attributes:
        patience_ms: silence after which a line with unanswered requests has ended.
        idle_ms: time without requests after which the line is closed.
        retry: from a failed attempt to the next one.
        age_ms_max: age at which a line is closed and looked for again: a client that has lost the
            right to write requests gets no further one (J2).
    """

    patience_ms: float = 3000
    idle_ms: float = 60_000
    retry: Retry = LINE
    age_ms_max: float = 600_000


class Way(StrEnum):
    """The state of the line."""

    TOPIC = "by topic"
    GREETING = "asking for a line"
    CONNECTING = "connecting"
    LINE = "by line"


@dataclass(frozen=True, slots=True)
class Greet:
    """Effect: ask the owner, by topic, where its worker takes lines."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Effect: connect, and prove to each other that both know the client's id."""

    greeting: Greeting


@dataclass(frozen=True, slots=True)
class Ping:
    """Effect: send an empty frame, which a worker that runs answers at once."""


@dataclass(frozen=True, slots=True)
class Close:
    """Effect: close the connection, if there is one."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Effect: send every request that has no answer again, by topic."""


LineEffect = Greet | Connect | Ping | Close | Repeat


class DirectLine:
    """The line to one owner.

    Attributes:
        way: the state of the line.
    """

    def __init__(self, limits: LineLimits | None = None) -> None:
        self._limits = limits or LineLimits()
        self.way = Way.TOPIC
        self._not_before_ms = 0.0
        self._failures = 0
        self._pending = False
        self._answer_due = False  # a request was sent by the line since anything was heard
        self._since_ms = self._used_ms = self._asked_ms = self._heard_ms = self._pinged_ms = 0.0

    @property
    def deadline_ms(self) -> float | None:
        """When `tick` is due; None: never. May be early."""
        if self.way is not Way.LINE:
            return None
        limits = self._limits
        ends_ms = self._since_ms + limits.age_ms_max
        if not self._pending:
            return min(ends_ms, self._used_ms + limits.idle_ms)
        pings_ms = max(self._quiet_since_ms, self._pinged_ms) + limits.patience_ms / 3
        return min(ends_ms, pings_ms, self._quiet_since_ms + limits.patience_ms)

    def awaits(self, *, pending: bool) -> None:
        """Whether a request has no answer yet."""
        self._pending = pending

    def used(self, now_ms: float) -> list[LineEffect]:
        """A request is about to be sent, by line if `way` says so, else by topic (J1)."""
        self._pending = True
        if self.way is Way.LINE:
            if not self._answer_due:
                self._asked_ms, self._answer_due = now_ms, True
            self._used_ms = now_ms
        elif self.way is Way.TOPIC and now_ms >= self._not_before_ms:
            self.way = Way.GREETING
            return [Greet()]
        return []

    def greeted(self, greeting: Greeting | None, now_ms: float) -> list[LineEffect]:
        """The owner's answer to `Greet`; None: it was refused, or did not come."""
        if self.way is not Way.GREETING:
            return []
        if greeting is None or not greeting.host:
            return self._given_up(now_ms)
        self.way = Way.CONNECTING
        return [Connect(greeting)]

    def connected(self, now_ms: float) -> None:
        """Both sides have proved that they know the client's id."""
        if self.way is Way.CONNECTING:
            self.way = Way.LINE
            self._since_ms = self._used_ms = self._heard_ms = now_ms
            self._asked_ms = self._pinged_ms = now_ms
            self._answer_due = False

    def heard(self, now_ms: float) -> None:
        """Anything came by the line."""
        if self.way is Way.LINE:
            self._heard_ms = now_ms
            self._answer_due = False
            self._failures = 0

    def lost(self, now_ms: float) -> list[LineEffect]:
        """The connection has ended, or could not be made (J3)."""
        was = self.way
        if was not in (Way.CONNECTING, Way.LINE):
            return []
        effects = self._given_up(now_ms)
        return [*effects, Repeat()] if was is Way.LINE else effects

    def tick(self, now_ms: float) -> list[LineEffect]:
        """Pings, or closes, a line that was silent, has rested, or is old."""
        limits, pending = self._limits, self._pending
        if self.way is not Way.LINE:
            return []
        if pending and now_ms >= self._quiet_since_ms + limits.patience_ms:
            return self.lost(now_ms)
        rests = not pending and now_ms >= self._used_ms + limits.idle_ms
        if rests or now_ms >= self._since_ms + limits.age_ms_max:
            self.way = Way.TOPIC
            return [Close(), Repeat()] if pending else [Close()]
        pings_ms = max(self._quiet_since_ms, self._pinged_ms) + limits.patience_ms / 3
        if pending and now_ms >= pings_ms:
            self._pinged_ms = now_ms
            return [Ping()]
        return []

    @property
    def _quiet_since_ms(self) -> float:
        """The time from which on an answer is due and nothing has come."""
        return max(self._heard_ms, self._asked_ms)

    def _given_up(self, now_ms: float) -> list[LineEffect]:
        self.way = Way.TOPIC
        self._failures += 1
        self._not_before_ms = now_ms + 1000 * self._limits.retry.wait_s(self._failures)
        return [Close()]
