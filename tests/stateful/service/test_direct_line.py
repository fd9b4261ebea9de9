"""The direct line under losses, silence and rest: every request gets to its owner (J1, J3, J4)."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.service.direct_line import (
    Close,
    Connect,
    DirectLine,
    Greet,
    LineEffect,
    LineLimits,
    Ping,
    Repeat,
    Way,
)
from stilltide.schemas.coordinator.transactions import Greeting
from stilltide.schemas.retry import Retry

LIMITS = LineLimits(patience_ms=300, idle_ms=1000, retry=Retry(0.05, 2, 0.4), age_ms_max=5000)
HERE = Greeting("worker", 1, bytes(16))


class Lines(RuleBasedStateMachine):
    """A client with one owner; the topic always carries, the line carries until it is cut.

    `on_line` are requests that were sent by the present line alone. `by_topic` were sent by topic
    too, so they are answered sooner or later.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line = DirectLine(LIMITS)
        self.now_ms = 0.0
        self.number = 0
        self.on_line: set[int] = set()
        self.by_topic: set[int] = set()
        self.connected = self.cut = False
        self.silent_since_ms: float | None = None

    def carry_out(self, effects: list[LineEffect]) -> None:
        """What the driver does."""
        for effect in effects:
            match effect:
                case Greet():
                    assert self.line.way is Way.GREETING
                case Connect():
                    assert not self.connected
                case Ping():
                    assert self.connected
                    if not self.cut:
                        self.heard()
                case Close():
                    self.connected = False
                case Repeat():
                    assert self.line.way is Way.TOPIC, "repeated by the line that has ended"
                    self.by_topic |= self.on_line
                    self.on_line.clear()

    def heard(self) -> None:
        """The worker says something."""
        self.silent_since_ms = None
        self.line.heard(self.now_ms)

    @property
    def pending(self) -> bool:
        """Whether a request has no answer."""
        return bool(self.on_line or self.by_topic)

    @rule()
    def ask(self) -> None:
        """A request is sent, by one way."""
        self.number += 1
        self.carry_out(self.line.used(self.now_ms))
        if self.line.way is Way.LINE:
            assert self.connected
            self.on_line.add(self.number)
            if self.silent_since_ms is None:
                self.silent_since_ms = self.now_ms
        else:
            self.by_topic.add(self.number)

    @precondition(lambda self: self.line.way is Way.GREETING)
    @rule(answer=st.sampled_from([HERE, None, Greeting("", 0, b"")]))
    def greet(self, answer: Greeting | None) -> None:
        """The owner answers, or nobody does."""
        self.carry_out(self.line.greeted(answer, self.now_ms))

    @precondition(lambda self: self.line.way is Way.CONNECTING)
    @rule(made=st.booleans())
    def connect(self, made: bool) -> None:  # noqa: FBT001 - hypothesis gives it by name
        """The worker proves itself, or does not."""
        if made:
            self.connected, self.cut = True, False
            self.silent_since_ms = None
            self.line.connected(self.now_ms)
        else:
            self.carry_out(self.line.lost(self.now_ms))

    @precondition(lambda self: self.connected and not self.cut)
    @rule(noticed=st.booleans())
    def lose(self, noticed: bool) -> None:  # noqa: FBT001 - as above
        """The line is cut; the client may learn of it by silence alone."""
        self.cut = True
        if noticed:
            self.carry_out(self.line.lost(self.now_ms))

    @precondition(lambda self: self.on_line and not self.cut)
    @rule()
    def answer_by_line(self) -> None:
        """All that came by line is answered by line."""
        self.on_line.clear()
        self.heard()

    @rule()
    def answer_by_topic(self) -> None:
        """What was sent by topic is answered."""
        self.by_topic.clear()

    @rule(ms=st.sampled_from([1, 60, 150, 400, 2000, 6000]))
    def pass_time(self, ms: int) -> None:
        """The driver ticks at each deadline on the way."""
        until_ms = self.now_ms + ms
        for _ in range(1000):
            self.line.awaits(pending=self.pending)
            due_ms = self.line.deadline_ms
            if due_ms is None or due_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, due_ms)
            self.carry_out(self.line.tick(self.now_ms))
        else:
            raise AssertionError("a tick does not move the deadline")
        self.now_ms = until_ms

    @invariant()
    def nothing_waits_for_a_line_that_is_gone(self) -> None:
        """J3: without a line, everything was sent by topic."""
        if self.line.way is not Way.LINE:
            assert not self.on_line
            assert not self.connected

    @invariant()
    def silence_ends(self) -> None:
        """J3: nobody waits for longer than the patience, which begins with the first request."""
        if self.on_line and self.cut and self.silent_since_ms is not None:
            assert self.now_ms < self.silent_since_ms + LIMITS.patience_ms


TestLines = Lines.TestCase


def attempts(line: DirectLine, until_ms: int) -> list[int]:
    """When a client that asks every 10 ms looks for a line that nobody gives."""
    found: list[int] = []
    for now_ms in range(0, until_ms, 10):
        if line.used(now_ms) == [Greet()]:
            found.append(now_ms)
            line.greeted(None, now_ms)
    return found


def test_the_pause_between_attempts_doubles_up_to_its_limit():
    """J4: 50, 100, 200, 400, 400 ms."""
    assert attempts(DirectLine(LIMITS), 1500) == [0, 50, 150, 350, 750, 1150]


def test_a_line_that_rests_is_closed_and_one_that_works_is_renewed():
    """J4: what rests costs nothing; a client that has lost its right gets no further line."""
    line = DirectLine(LIMITS)
    line.used(0)
    line.greeted(HERE, 0)
    line.connected(0)
    line.awaits(pending=False)
    assert line.deadline_ms == 1000
    assert line.tick(1000) == [Close()]
    assert line.used(1001) == [Greet()]
    line.greeted(HERE, 1001)
    line.connected(1001)
    for now_ms in range(1001, 6001, 100):
        assert line.used(now_ms) == []
        line.heard(now_ms)
        assert line.tick(now_ms) == []
    assert line.tick(6001) == [Close(), Repeat()]


def test_silence_counts_from_the_first_request_also_at_the_moment_of_connecting():
    """J3: a later request makes nobody wait longer."""
    line = DirectLine(LIMITS)
    line.used(0)
    line.greeted(HERE, 0)
    line.connected(0)
    line.used(0)
    line.used(270)
    assert line.tick(300) == [Close(), Repeat()]
