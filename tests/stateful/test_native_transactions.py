"""Native transactions under arbitrary histories, slices, retention and compaction.

*Source*: rules F1, F2, F3.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.native.batch_filter import (
    AbortedRanges,
    BatchFilter,
    BatchVerdict,
    RangeBuilder,
)
from stilltide.schemas.native.transactions import NO_PRODUCER_ID, AbortedTransaction, Control
from stilltide.schemas.values import EndOffset, Offset
from tests.support.examples import examples
from tests.support.native.log import Choose, NativeLog
from tests.support.native.open_transactions import OpenTransaction, OpenTransactions
from tests.support.native.transaction_index import TransactionIndex

PRODUCERS = st.integers(1, 3)
COUNTS = st.integers(1, 4)


class NativeTransactionsMachine(RuleBasedStateMachine):
    """A model log; the cores read it whole or in slices, from anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.log = NativeLog()
        self.open = OpenTransactions()
        self.index = TransactionIndex()
        self.walked = 0
        self.compacted = False

    @rule(producer=PRODUCERS, count=COUNTS)
    def produce(self, producer: int, count: int):
        """A batch of a transaction."""
        self.log.produce(producer, count)

    @rule(producer=st.sampled_from([NO_PRODUCER_ID, 9]), count=COUNTS)
    def produce_outside(self, producer: int, count: int):
        """A batch of a plain or idempotent producer."""
        self.log.produce_outside(producer, count)

    @rule(producer=PRODUCERS, control=st.sampled_from([Control.ABORT, Control.COMMIT]))
    def mark(self, producer: int, control: Control):
        """A marker, perhaps of a producer that has written nothing, perhaps again."""
        self.log.mark(producer, control)

    @rule(data=st.data())
    def trim(self, data: st.DataObject):
        """The log start moves, also into a batch."""
        self.walk()
        self.log.trim(data.draw(st.integers(self.log.start, self.log.stable)))

    @rule(data=st.data())
    def compact(self, data: st.DataObject):
        """The cleaner passes over what is decided."""
        self.walk()
        self.log.compact(chooser(data))
        self.compacted = True

    @rule(data=st.data())
    def read(self, data: st.DataObject):
        """F2: from anywhere, in slices of any size, exactly what committed is seen."""
        log, choose = self.log, chooser(data)
        start = log.start + choose(log.stable - log.start + 1)
        position, seen, hidden = start, list[int](), AbortedRanges()
        builder = RangeBuilder()
        while position < log.stable:
            answer = log.fetch(position, 1 + choose(4), choose)
            if not answer.pieces:
                break
            filter_ = BatchFilter(Offset(position), answer.aborted)
            for piece in answer.pieces:
                verdict = filter_.batch_read(piece.header)
                if verdict is BatchVerdict.VISIBLE:
                    seen += [it for it in piece.offsets if it >= position]
                ended = builder.batch_read(piece.header, verdict, Offset(position))
                if ended is not None:
                    hidden.append(ended)
            assert filter_.position > position, "F2: it always moves on"
            position = filter_.position
        if builder.open is not None:
            hidden.append(builder.open)
        assert seen == log.committed(start, log.stable)
        self.check_ranges(hidden, start)

    def check_ranges(self, hidden: AbortedRanges, start: int):
        """F3: of all records below the last stable offset, those in a range are the aborted."""
        records = [
            offset
            for piece in self.log.pieces
            if piece.control is None
            for offset in piece.offsets
            if start <= offset < self.log.stable
        ]
        committed = set(self.log.committed(start, self.log.stable))
        assert {it for it in records if it not in hidden} == committed

    @rule(data=st.data())
    def search(self, data: st.DataObject):
        """F1: bisection finds what the walk of the seed finds, for any range."""
        if self.compacted:
            return
        self.walk()
        first = data.draw(st.integers(0, self.log.end))
        until = data.draw(st.integers(first, self.log.end))
        found = self.index.search(Offset(first), EndOffset(until))
        assert tuple(found) == self.log.search(first, until)

    @precondition(lambda self: self.log.pieces)
    @rule(data=st.data())
    def read_by_an_index_of_what_is_left(self, data: st.DataObject):
        """F1: a walk over a log that was trimmed and compacted makes an index that filters it."""
        log, choose = self.log, chooser(data)
        walk, index = OpenTransactions(), TransactionIndex()
        for piece in log.pieces:
            row = walk.batch_read(piece.header)
            if row is not None:
                index.append(row)
        start = log.start + choose(log.stable - log.start + 1)
        found = index.search(Offset(start), EndOffset(log.stable))
        aborted = [AbortedTransaction(it.producer_id, it.first_offset) for it in found.entries]
        filter_ = BatchFilter(Offset(start), aborted)
        seen = [
            offset
            for piece in log.pieces
            if piece.last >= start and piece.base < log.stable
            if filter_.batch_read(piece.header) is BatchVerdict.VISIBLE
            for offset in piece.offsets
            if offset >= start
        ]
        assert seen == log.committed(start, log.stable)

    def walk(self):
        """Feeds what was appended since, in the form in which it was appended."""
        for piece in self.log.pieces:
            if piece.base >= self.walked:
                row = self.open.batch_read(piece.header)
                if row is not None:
                    self.index.append(row)
        self.walked = self.log.end

    @invariant()
    def the_walk_knows_what_is_open(self):
        """F1: the open transactions with their first offsets, and a row for each that aborted."""
        self.walk()
        assert list(self.open) == sorted(
            (OpenTransaction(it, self.log.first_of[txn]) for it, txn in self.log.open.items()),
            key=lambda one: one.first_offset,
        )
        if not self.compacted:
            assert list(self.index) == self.log.rows


def chooser(data: st.DataObject) -> Choose:
    """Draws one of so many."""
    return lambda count: data.draw(st.integers(0, count - 1))


NativeTransactionsMachine.TestCase.settings = settings(
    max_examples=examples(250), stateful_step_count=30
)
TestNativeTransactions = NativeTransactionsMachine.TestCase
