"""The accumulator under arbitrary appends, acknowledgements, clocks and changes of its limits.

*Source*: rules A1, A2, A3, A6, A7.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from stilltide.pipeline.core.buffered_log.accumulator import (
    Accumulator,
    BatchLimits,
    ClosedError,
    FlushTrigger,
    WriteEntry,
)
from tests.support.examples import examples

LIMITS = st.builds(
    BatchLimits,
    records_max=st.integers(1, 5),
    bytes_max=st.integers(4, 40),
    delay_ms_max=st.integers(1, 10),
    eager=st.booleans(),
    batching=st.sampled_from([True, True, True, False]),
)


class AccumulatorMachine(RuleBasedStateMachine):
    """Appends numbered records, ends writes in any order and keeps its own account of both."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.taken: list[tuple[bytes, int]] = []  # record, when
        self.gone = 0
        self.entries = 0
        self.in_flight = 0
        self.closed = False

    @initialize(limits=LIMITS)
    def start(self, limits: BatchLimits):
        """Any thresholds."""
        self.limits = limits
        self.machine = Accumulator(limits)

    @precondition(lambda self: not self.closed)
    @rule(size=st.integers(2, 12) | st.integers(2, 50))
    def append(self, size: int):
        """One record; every record differs."""
        record = len(self.taken).to_bytes(2, "big").ljust(size, b".")
        self.taken.append((record, self.now_ms))
        self.run(self.machine.append(record, self.now_ms))

    @precondition(lambda self: self.closed)
    @rule()
    def append_after_close(self):
        """A6: refused, and nothing is taken."""
        with pytest.raises(ClosedError):
            self.machine.append(b"late", self.now_ms)

    @rule(elapsed_ms=st.integers(0, 12))
    def wait(self, elapsed_ms: int):
        """Time passes; the loop is late with its tick."""
        self.now_ms += elapsed_ms

    @rule()
    def tick(self):
        """A3: at the deadline everything leaves, before it nothing."""
        deadline_ms = self.machine.deadline_ms
        written = self.machine.tick(self.now_ms)
        due = deadline_ms is not None and deadline_ms <= self.now_ms
        assert bool(written) == due
        self.run(written)

    @precondition(lambda self: self.in_flight)
    @rule()
    def end_write(self):
        """A3: in eager mode the last acknowledgement lets everything leave, else nothing does."""
        written = self.machine.write_ended(self.now_ms)
        self.in_flight -= 1
        eager = self.limits.eager and not self.in_flight
        assert not written or eager
        self.run(written)
        assert not (eager and self.waiting())

    @rule(limits=LIMITS)
    def change_limits(self, limits: BatchLimits):
        """A7: at any moment; what is buffered leaves under the old thresholds."""
        self.run(self.machine.limits_changed(limits, self.now_ms))
        self.limits = limits
        assert not self.waiting()

    @rule(sure=st.sampled_from([True, *[False] * 9]))
    def close(self, *, sure: bool):
        """A6: what is buffered leaves; closing again does nothing."""
        if sure:
            closed_before = self.closed
            self.closed = True
            written = self.machine.close(self.now_ms)
            assert not (closed_before and written)
            self.run(written)
            assert not self.waiting()

    def waiting(self) -> list[tuple[bytes, int]]:
        """Records that have not left, by this account."""
        return self.taken[self.gone :]

    def run(self, written: list[WriteEntry]):
        """Checks what each entry holds, then counts it as on its way."""
        for entry in written:
            self.check(entry)
            self.entries += 1
            self.gone += len(entry.records)
            self.in_flight += 1

    def check(self, entry: WriteEntry):
        """A1, A2, A3, A7 for one entry."""
        first = self.waiting()[: len(entry.records)]
        assert entry.number == self.entries + 1
        assert entry.records, "an empty entry"
        assert list(entry.records) == [record for record, _ in first]
        assert entry.waited_ms == self.now_ms - first[0][1]
        size = sum(map(len, entry.records))
        assert len(entry.records) <= self.limits.records_max
        if len(entry.records) > 1:
            assert self.limits.batching
            assert size <= self.limits.bytes_max
            assert max(map(len, entry.records)) < self.limits.bytes_max
        assert self.justified(entry, size), f"nothing called for {entry}"

    def justified(self, entry: WriteEntry, size: int) -> bool:
        """A3: the trigger that the entry names is true."""
        behind = self.waiting()[len(entry.records) :]
        following = len(behind[0][0]) if behind else 0
        true = {
            FlushTrigger.RECORDS: len(entry.records) == self.limits.records_max,
            FlushTrigger.BYTES: size + following >= self.limits.bytes_max,
            FlushTrigger.DELAY: entry.waited_ms >= self.limits.delay_ms_max,
            FlushTrigger.IDLE: self.limits.eager and not self.in_flight,
            FlushTrigger.LARGE: following >= self.limits.bytes_max,
            FlushTrigger.UNBATCHED: not self.limits.batching
            or self.limits.records_max == 1
            or size >= self.limits.bytes_max,
            FlushTrigger.CLOSE: True,
        }
        return true[entry.trigger]

    @invariant()
    def keeps_every_record_once_in_order(self):
        """A1: what has not left is buffered, and nothing else is."""
        assert self.machine.buffered == len(self.waiting())

    @invariant()
    def never_holds_a_full_batch(self):
        """A2, A3, A7: what reaches a threshold has left at once."""
        waiting = self.waiting()
        assert len(waiting) < self.limits.records_max or not waiting
        assert sum(len(record) for record, _ in waiting) < self.limits.bytes_max
        assert self.limits.batching or not waiting

    @invariant()
    def names_its_deadline(self):
        """A3: measured from the oldest record; at once where eager and nothing is in flight."""
        waiting = self.waiting()
        if not waiting:
            assert self.machine.deadline_ms is None
            return
        at_once = self.limits.eager and not self.in_flight
        delay_ms = 0 if at_once else self.limits.delay_ms_max
        assert self.machine.deadline_ms == waiting[0][1] + delay_ms


AccumulatorMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestAccumulator = AccumulatorMachine.TestCase
