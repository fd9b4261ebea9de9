"""L9: what a call does for each state of the files that earlier calls have left."""

from dataclasses import dataclass, field
from itertools import product

import pytest

from stilltide.pipeline.core.coordinator.batch_write import (
    AbortOpen,
    BatchEffect,
    BatchFiles,
    BatchOutcome,
    EndDecided,
    KeepDecision,
    KeepEnd,
    KeepToken,
    PrepareOpen,
    ReadFiles,
    WriteRecords,
    write_batch,
)
from stilltide.pipeline.errors import BatchError, RefusedError

LEFT_BEHIND = [
    *product((None, False), ("open", "prepared", "aborted")),
    *product((True,), ("prepared", "committed")),
]
"""Decisions about an attempt, and the states that its transaction may have then."""


class Killed(BaseException):
    """The driver is gone."""


@dataclass
class Folder:
    """The files of a batch, and the transactions of its attempts, which outlive a driver.

    Attributes:
        states: the state of each transaction, by its token.
        misses: how many of the next attempts do not hold exactly the records.
        of_others: attempts of another streaming query.
    """

    tokens: dict[int, str] = field(default_factory=dict)
    decisions: dict[int, bool] = field(default_factory=dict)
    ended: bool = False
    states: dict[str, str] = field(default_factory=dict)
    misses: int = 0
    of_others: frozenset[int] = frozenset()

    @property
    def committed(self) -> list[str]:
        """Tokens of the transactions that are visible."""
        return [token for token, state in self.states.items() if state == "committed"]

    def carry_out(self, effect: BatchEffect, driver: "Driver") -> object:
        """The result of an effect."""
        match effect:
            case ReadFiles():
                tokens, decisions = dict(self.tokens), dict(self.decisions)
                return BatchFiles(tokens, decisions, self.ended, self.of_others)
            case WriteRecords():
                return self._write(driver)
            case KeepToken(attempt, token):
                return self.tokens.setdefault(attempt, token) == token
            case PrepareOpen():
                assert driver.token in self.tokens.values(), "nobody could end it"
                if self.states[driver.token] != "open":
                    raise RefusedError("aborted at its time-out")
                self.states[driver.token] = "prepared"
            case AbortOpen():
                assert self.states[driver.token] == "open"
                self.states[driver.token] = "aborted"
            case KeepDecision(attempt, committed):
                return self.decisions.setdefault(attempt, committed)
            case EndDecided(token, committed):
                self._end(token, committed=committed)
            case KeepEnd(attempt):
                assert self.states[self.tokens[attempt]] == "committed"
                self.ended = True
        return None

    def _write(self, driver: "Driver") -> str | None:
        driver.token = f"token-{len(self.states)}"
        self.states[driver.token] = "open"
        if self.misses:
            self.misses -= 1
            self.states[driver.token] = "aborted"
            return None
        return driver.token

    def _end(self, token: str, *, committed: bool) -> None:
        attempt = next(number for number, kept in self.tokens.items() if kept == token)
        assert self.decisions[attempt] == committed, "the decision is stored first"
        if self.states[token] == "prepared":
            self.states[token] = "committed" if committed else "aborted"
        elif committed:
            assert self.states[token] == "committed", "a decision to commit is of what is prepared"


class Driver:
    """A call, effect by effect."""

    def __init__(self, folder: Folder, tries: int = 3) -> None:
        self.token = ""
        self._folder = folder
        self._writing = write_batch(tries)
        self._next: BatchEffect | None = next(self._writing)
        self.outcome: BatchOutcome | None = None
        self.error: Exception | None = None

    @property
    def over(self) -> bool:
        """Whether the call has returned or raised."""
        return self._next is None

    def step(self) -> None:
        """Carries out the next effect."""
        assert self._next is not None
        try:
            try:
                result = self._folder.carry_out(self._next, self)
            except RefusedError as error:
                self._next = self._writing.throw(error)
            else:
                self._next = self._writing.send(result)
        except StopIteration as end:
            self._next, self.outcome = None, end.value
        except (BatchError, RefusedError) as error:
            self._next, self.error = None, error

    def run(self) -> BatchOutcome | None:
        """Carries out what is left."""
        while not self.over:
            self.step()
        return self.outcome


def steps_of_a_call() -> int:
    """How many effects a call has that nothing disturbs."""
    driver, count = Driver(Folder()), 0
    while not driver.over:
        driver.step()
        count += 1
    return count


STEPS = steps_of_a_call()


@pytest.mark.parametrize("kills", list(product(range(STEPS + 1), repeat=2)))
def test_calls_that_are_killed_anywhere_write_the_batch_once(kills: tuple[int, int]):
    """Two drivers die, each after any of its effects; a third one ends with one commit."""
    folder = Folder()
    for kill in kills:
        driver = Driver(folder)
        for _ in range(kill):
            if not driver.over:
                driver.step()
    last = Driver(folder)
    assert last.run() is not None
    assert len(folder.committed) == 1
    assert folder.ended
    assert "prepared" not in folder.states.values()
    assert Driver(folder).run() is BatchOutcome.REPEATED
    assert len(folder.committed) == 1


@pytest.mark.parametrize("order", list(product("ab", repeat=STEPS + 2)))
def test_two_drivers_at_once_commit_once(order: tuple[str, ...]):
    """A driver that was taken for dead goes on, in each order of the steps of both."""
    folder = Folder()
    drivers = {"a": Driver(folder), "b": Driver(folder)}
    for name in order:
        if not drivers[name].over:
            drivers[name].step()
    for driver in drivers.values():
        driver.run()
    Driver(folder).run()
    assert len(folder.committed) == 1
    assert "prepared" not in folder.states.values()


@pytest.mark.parametrize(("decision", "state"), LEFT_BEHIND)
def test_a_restart_follows_the_decision(decision: object, state: str):
    """Committed and resumed if decided so; else aborted, and written again."""
    decisions = {} if decision is None else {1: bool(decision)}
    folder = Folder(tokens={1: "old"}, decisions=decisions, states={"old": state})
    outcome = Driver(folder).run()
    assert outcome is (BatchOutcome.RESUMED if decision else BatchOutcome.WRITTEN)
    assert len(folder.committed) == 1
    assert (folder.states["old"] == "committed") == bool(decision)


@pytest.mark.parametrize("state", ["prepared", "committed"])
@pytest.mark.parametrize("ended", [False, True])
def test_a_batch_of_another_query_is_not_taken_for_this_one(*, ended: bool, state: str):
    """What the other one has decided is carried out, and the call raises."""
    decided = {1: False, 2: True}
    folder = Folder({1: "a", 2: "b"}, decided, states={"a": "aborted", "b": state})
    folder.ended, folder.of_others = ended, frozenset({1, 2})
    driver = Driver(folder)
    driver.run()
    assert isinstance(driver.error, BatchError)
    assert "other records" in str(driver.error)
    assert folder.states == {"a": "aborted", "b": state if ended else "committed"}


def test_what_another_query_has_left_undecided_does_not_stand_in_the_way():
    """Its attempt is aborted, and the batch of this query is written."""
    folder = Folder({1: "a"}, states={"a": "prepared"}, of_others=frozenset({1}))
    assert Driver(folder).run() is BatchOutcome.WRITTEN
    assert list(folder.states.values()) == ["aborted", "committed"]


def test_an_attempt_that_does_not_hold_exactly_the_records_is_written_again():
    """Its transaction is aborted, and the next one is committed."""
    folder = Folder(misses=2)
    assert Driver(folder, tries=3).run() is BatchOutcome.WRITTEN
    assert list(folder.states.values()) == ["aborted", "aborted", "committed"]


def test_tries_are_bounded():
    """After the last one nothing is visible, and the error says so."""
    folder = Folder(misses=9)
    driver = Driver(folder, tries=2)
    driver.run()
    assert isinstance(driver.error, BatchError)
    assert list(folder.states.values()) == ["aborted", "aborted"]


def test_a_transaction_that_timed_out_is_decided_to_abort():
    """The refusal of `Prepare` goes on, and the next call writes the batch again."""
    folder = Folder()
    driver = Driver(folder)
    while not folder.tokens:
        driver.step()
    folder.states[driver.token] = "aborted"
    driver.run()
    assert isinstance(driver.error, RefusedError)
    assert folder.decisions == {1: False}
    assert Driver(folder).run() is BatchOutcome.WRITTEN
    assert len(folder.committed) == 1
