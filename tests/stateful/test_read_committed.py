"""The read-committed machine against a plain model, under arbitrary interleavings.

*Source*: rules D1, D2, D3, D7.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.read_committed.machine import (
    MALFORMED,
    Deliver,
    Effect,
    PartitionFilter,
    PauseFetching,
    Reason,
    ResumeFetching,
    Withheld,
)
from stilltide.schemas.values import TxnId
from tests.support.examples import examples

WAITING_MAX = 4
IN_FLIGHT_MAX = 3
FETCH_MAX = 5
PLAIN = None
TXNS = [TxnId(coordinator, sequence).to_bytes() for coordinator in (0, 1) for sequence in range(5)]


class ReadCommitted(RuleBasedStateMachine):
    """A log that grows, a fetcher that obeys pauses with some delay, markers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = PartitionFilter(position=0, waiting_max=WAITING_MAX)
        self.log: list[tuple[int, bytes | None]] = []
        self.log_end = 0
        self.fed = 0
        self.fed_end = 0
        self.outcomes: dict[bytes, int | None] = {}
        self.paused = False
        self.in_flight = IN_FLIGHT_MAX
        self.delivered: list[int] = []
        self.withheld: list[tuple[int, bool]] = []
        self.position = 0

    @rule(txns=st.lists(st.sampled_from([PLAIN, MALFORMED, *TXNS]), min_size=1, max_size=5))
    def write(self, txns: list[bytes | None]):
        """Appends records."""
        for txn in txns:
            self.log.append((self.log_end, txn))
            self.log_end += 1

    @rule(count=st.integers(1, 2))
    def write_control_records(self, count: int):
        """Passes over offsets that hold no readable record."""
        self.log_end += count

    @rule(count=st.integers(1, FETCH_MAX))
    def fetch(self, count: int):
        """Feeds the next records; a paused fetcher only what was under way."""
        if self.paused:
            count = min(count, self.in_flight)
            self.in_flight -= count
        batch = self.log[self.fed : self.fed + count]
        self.fed += len(batch)
        if batch:
            self.fed_end = batch[-1][0] + 1
        offsets, txns = [offset for offset, _ in batch], [txn for _, txn in batch]
        self.run(self.machine.records_read(offsets, txns, offsets))

    @precondition(lambda self: self.fed == len(self.log) and not self.paused)
    @rule()
    def meet_end(self):
        """The fetcher has reached the end of the log."""
        self.fed_end = self.log_end
        self.run(self.machine.end_reached(self.fed_end))

    @precondition(lambda self: self.undecided() is not None)
    @rule(committed=st.booleans(), cut=st.integers(0, 2))
    def mark_undecided(self, *, committed: bool, cut: int):
        """The outcome that the reader waits for."""
        stop = self.undecided()
        self.mark(dict(self.log)[stop], committed=committed, cut=cut)

    @rule(txn=st.sampled_from(TXNS), committed=st.booleans(), cut=st.integers(0, 2))
    def mark(self, txn: bytes, *, committed: bool, cut: int):
        """An outcome that cuts off its last records as late; a known one is only repeated."""
        if txn not in self.outcomes:
            own = [offset for offset, other in self.log if other == txn]
            end_offset = own[-cut] if 0 < cut <= len(own) else self.log_end
            self.outcomes[txn] = end_offset if committed else None
        end_offset = self.outcomes[txn]
        self.run(
            self.machine.marker_read(txn, committed=end_offset is not None, end_offset=end_offset)
        )

    def run(self, effects: list[Effect[int]]):
        """Does what a driver does, and checks that each effect makes sense on its own."""
        for effect in effects:
            match effect:
                case Deliver(payloads, position):
                    self.delivered.extend(payloads)
                    assert position > self.position
                    self.position = position
                case PauseFetching():
                    assert not self.paused
                    self.paused, self.in_flight = True, IN_FLIGHT_MAX
                case ResumeFetching():
                    assert self.paused
                    assert self.machine.statistics.waiting <= WAITING_MAX // 2
                    self.paused = False
                case Withheld(offset, reason):
                    self.withheld.append((offset, reason is Reason.LATE))

    def undecided(self) -> int | None:
        """Offset of the first fed record without outcome, in the model."""
        for offset, txn in self.log[: self.fed]:
            if txn and txn not in self.outcomes:
                return offset
        return None

    def visible(self, offset: int, txn: bytes | None) -> bool:
        """D1 and D3, in the model."""
        if txn is PLAIN:
            return True
        end_offset = self.outcomes.get(txn)
        return end_offset is not None and offset < end_offset

    @invariant()
    def delivers_exactly_the_visible_prefix(self):
        """D1, D2, D3: every visible record before the first undecided one, once, in order."""
        stop = self.undecided()
        assert self.delivered == [
            offset
            for offset, txn in self.log[: self.fed]
            if (stop is None or offset < stop) and self.visible(offset, txn)
        ]

    @invariant()
    def position_stands_at_the_undecided_record(self):
        """D2: the position never passes an undecided record, and stops nowhere else."""
        stop = self.undecided()
        assert self.position == self.machine.position == (self.fed_end if stop is None else stop)
        assert (self.machine.undecided and self.machine.undecided.offset) == stop

    @invariant()
    def reports_what_it_withholds(self):
        """D1: late and malformed records are reported once, when passed; aborted ones counted."""
        passed = [record for record in self.log[: self.fed] if record[0] < self.position]
        late = [
            o
            for o, txn in passed
            if self.outcomes.get(txn) is not None and not self.visible(o, txn)
        ]
        malformed = [o for o, txn in passed if txn == MALFORMED]
        hidden = [o for o, txn in passed if txn in self.outcomes and self.outcomes[txn] is None]
        assert self.withheld == sorted([(o, True) for o in late] + [(o, False) for o in malformed])
        counts = self.machine.statistics
        assert (counts.delivered, counts.hidden) == (len(self.delivered), len(hidden))
        assert (counts.late, counts.malformed) == (len(late), len(malformed))

    @invariant()
    def buffer_is_bounded_and_drops_nothing(self):
        """D7: at most the limit, one fetch, and what was under way; every fed record is kept."""
        waiting = self.machine.statistics.waiting
        assert waiting == sum(1 for offset, _ in self.log[: self.fed] if offset >= self.position)
        assert waiting < WAITING_MAX + FETCH_MAX + IN_FLIGHT_MAX
        assert self.paused or waiting < WAITING_MAX
        assert not self.paused or waiting > WAITING_MAX // 2


ReadCommitted.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestReadCommitted = ReadCommitted.TestCase
