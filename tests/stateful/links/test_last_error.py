"""The last error of a link: any history of errors, failed writes and looks at the time (H9)."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.links.last_error import (
    AGAIN_MS,
    SAME_MS,
    LastErrorReport,
    WriteLastError,
)
from stilltide.schemas.replication.positions import LastError
from tests.support.examples import examples


class LastErrors(RuleBasedStateMachine):
    """A link meets errors, and its target takes the record or not."""

    def __init__(self) -> None:
        super().__init__()
        self.report = LastErrorReport()
        self.now_ms = 1000
        self.under_way: list[LastError] = []
        self.record: LastError | None = None
        self.newest: LastError | None = None
        self.began: list[tuple[int, str]] = []

    @rule(cause=st.sampled_from("abc"))
    def fail(self, cause: str):
        """The link meets an error."""
        self.newest = LastError(self.now_ms, cause, "")
        self.take(self.report.met(self.newest, self.now_ms))

    @rule(passed_ms=st.sampled_from([1, 999, AGAIN_MS - 1, AGAIN_MS, SAME_MS]))
    def wait(self, passed_ms: int):
        """Time goes on, and the driver ticks."""
        self.now_ms += passed_ms
        self.take(self.report.tick(self.now_ms))

    @precondition(lambda self: self.under_way)
    @rule(lost=st.booleans(), there=st.booleans())
    def end_write(self, *, lost: bool, there: bool):
        """A write ends; of one that failed nobody knows whether the record is there."""
        error = self.under_way.pop()
        if not lost or there:
            self.record = error
        told = (
            self.report.not_written(self.now_ms)
            if lost
            else self.report.written(error, self.now_ms)
        )
        self.take(told)

    def take(self, effects: list[WriteLastError]):
        """Begins the writes."""
        for effect in effects:
            self.under_way.append(effect.error)
            self.began.append((self.now_ms, effect.error.cause))

    @invariant()
    def h9_one_write_at_a_time(self):
        """Two could end in the other order, and the older error would stay."""
        assert len(self.under_way) <= 1

    @invariant()
    def h9_writes_are_rare(self):
        """However often a link fails."""
        for (before_ms, _), (after_ms, _) in zip(self.began, self.began[1:], strict=False):
            assert after_ms - before_ms >= AGAIN_MS

    @invariant()
    def h9_nothing_is_invented(self):
        """The record holds an error that was met, and none before the first error."""
        assert self.newest is not None or (self.record is None and self.report.deadline_ms is None)

    def teardown(self):
        """H9: once the target takes records again, the newest error is there after a minute."""
        for _ in range(4):
            while self.under_way:
                self.end_write(lost=False, there=True)
            self.wait(SAME_MS)
        while self.under_way:
            self.end_write(lost=False, there=True)
        assert self.record == self.newest
        assert self.report.deadline_ms is None


LastErrors.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=30)
TestLastErrors = LastErrors.TestCase
