"""A member's tracker against plain sets, with a store whose answers come late or never."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode, encode
from stilltide.pipeline.core.pending_ack.redeliveries import RedeliveryPolicy
from stilltide.pipeline.core.pending_ack.tracker import Ask, Tracker
from stilltide.pipeline.errors import AcknowledgementError
from stilltide.schemas.pending_ack.acknowledgements import Acks, PendingAcks
from stilltide.schemas.values import EndOffset, Offset, Ranges, TopicPartition, TxnId
from tests.support.examples import examples

DATA = TopicPartition("orders", 0)
DELAY_MS = 1000
THEIRS = TxnId(9, 9)
END = 64
MASKS = st.integers(0, 2**END - 1)
"""Sets of offsets below `END`, as bits: drawn in one piece."""
PICKS = st.integers(0, 2**16)


def bits(mask: int) -> set[int]:
    """The set of the bits in a mask."""
    return {it for it in range(END) if mask >> it & 1}


def some(offsets: set[int], pick: int, count: int) -> list[int]:
    """So many of a set, in an order of its own."""
    found = sorted(offsets, key=lambda it: (it * 7919 + pick) % 101)
    return found[:count]


def ranges_of(offsets: set[int]) -> Ranges:
    """A plain set as ranges."""
    return RangeSet((it, it + 1) for it in sorted(offsets)).ranges()


@dataclass
class Txn:
    """A transaction of this member: what it claimed, and how far it has come."""

    claimed: set[int] = field(default_factory=set[int])
    stored: bool = False


class TrackerRules(RuleBasedStateMachine):
    """The application, the transactions and the store around one tracker.

    The store is a set of acknowledged offsets and the pending ones of each transaction.
    """

    @initialize(masks=st.tuples(MASKS, MASKS, MASKS, MASKS), offset=st.integers(0, END // 4))
    def assigned(self, masks: tuple[int, int, int, int], offset: int) -> None:
        """A group's commit, visible records above it, and what others have left behind."""
        self.now_ms = 0.0
        self.offset = offset
        sparse = masks[0] & masks[1]
        committed = {it for it in bits(masks[2] & sparse) if it > offset}
        self.store_acknowledged = bits(masks[3] & sparse)
        taken_by_others = committed | self.store_acknowledged
        theirs = {it for it in bits(masks[2] & masks[3]) if it >= offset} - taken_by_others
        self.pending: dict[object, set[int]] = {THEIRS: theirs}
        self.records = sorted(it for it in bits(masks[0] | masks[2]) if it >= self.offset)
        self.position = self.offset
        self.acknowledged = committed | self.store_acknowledged
        self.with_application: set[int] = set()
        self.seen: set[int] = set()
        self.nacked: dict[int, float] = {}
        self.open: list[Txn] = []
        self.unsettled: list[Txn] = []
        self.questions: list[Ask] = []
        cursor = Cursor(Offset(self.offset), ranges_of(committed), ("g=1",))
        self.tracker = Tracker[int](
            DATA, cursor, self.acks(), redelivery=RedeliveryPolicy(DELAY_MS)
        )

    def acks(self) -> Acks:
        """What the store says now."""
        pending = tuple(
            PendingAcks(THEIRS, ranges_of(it), None) for it in self.pending.values() if it
        )
        return Acks(EndOffset(0), ranges_of(self.store_acknowledged), pending, b"m" * 16)

    def all_pending(self) -> set[int]:
        """What is pending in any transaction, as the store sees it."""
        return set[int]().union(*self.pending.values())

    def check_handed_over(self, offset: int) -> None:
        """G: nothing acknowledged, pending, or with the application already is handed over."""
        assert offset not in self.acknowledged
        assert offset not in self.with_application
        assert all(offset not in it.claimed for it in [*self.open, *self.unsettled])
        assert offset not in self.all_pending()
        self.with_application.add(offset)
        self.seen.add(offset)

    @rule(count=st.integers(1, 60))
    def take(self, count: int) -> None:
        """The application wants more."""
        for _ in range(count):
            if not self.records or not self.tracker.admits(self.records[0]):
                break
            offset = self.records.pop(0)
            self.position = offset + 1
            if self.tracker.taken(offset, offset):
                self.check_handed_over(offset)

    @rule(pick=PICKS, count=st.integers(1, 20))
    def acknowledge(self, pick: int, count: int) -> None:
        """Messages are done, in any order; twice is refused."""
        for offset in some(self.with_application, pick, count):
            self.tracker.acknowledge(offset)
            self.done(offset)
            with pytest.raises(AcknowledgementError):
                self.tracker.acknowledge(offset)

    def done(self, offset: int) -> None:
        """One offset is acknowledged for good."""
        self.with_application.discard(offset)
        self.nacked.pop(offset, None)
        for txn in self.unsettled:
            txn.claimed.discard(offset)
        self.acknowledged.add(offset)

    @precondition(lambda self: self.with_application)
    @rule(pick=PICKS)
    def acknowledge_cumulative(self, pick: int) -> None:
        """All up to one; refused as a whole when any is pending, or was never handed over."""
        offset = some(self.with_application, pick, 1)[0]
        below = self.not_acknowledged() & set(range(offset + 1))
        if below <= self.with_application | set(self.tracker.redeliveries.waiting) & self.seen:
            self.tracker.acknowledge_cumulative(offset)
            for one in below:
                self.done(one)
        else:
            before = self.tracker.unacknowledged
            with pytest.raises(AcknowledgementError):
                self.tracker.acknowledge_cumulative(offset)
            assert self.tracker.unacknowledged == before

    @precondition(lambda self: self.with_application)
    @rule(pick=PICKS)
    def negative_acknowledge(self, pick: int) -> None:
        """A message is to come again."""
        offset = some(self.with_application, pick, 1)[0]
        self.tracker.negative_acknowledge(offset, self.now_ms, "why")
        self.with_application.remove(offset)
        self.nacked[offset] = self.now_ms + DELAY_MS

    @rule()
    def begin(self) -> None:
        """A transaction begins."""
        if len(self.open) < 3:
            self.open.append(Txn())

    @precondition(lambda self: self.open and self.with_application)
    @rule(pick=PICKS, count=st.integers(1, 10))
    def claim(self, pick: int, count: int) -> None:
        """Messages are acknowledged in a transaction; no other may have them."""
        txn = self.open[pick % len(self.open)]
        for offset in some(self.with_application, pick, count):
            self.tracker.claim(id(txn), offset)
            txn.claimed.add(offset)
            self.with_application.remove(offset)
            with pytest.raises(AcknowledgementError):
                self.tracker.claim("another", offset)

    @precondition(lambda self: self.open and self.with_application)
    @rule(pick=PICKS)
    def claim_cumulative(self, pick: int) -> None:
        """All up to one in a transaction, but for what it has claimed before."""
        txn = self.open[pick % len(self.open)]
        offset = some(self.with_application, pick, 1)[0]
        below = (self.not_acknowledged() - txn.claimed) & set(range(offset + 1))
        if below <= self.with_application | set(self.tracker.redeliveries.waiting) & self.seen:
            self.tracker.claim_cumulative(id(txn), offset)
            for other in self.unsettled:
                other.claimed -= below
            txn.claimed |= below
            for one in below:
                self.with_application.discard(one)
                self.nacked.pop(one, None)
        else:
            with pytest.raises(AcknowledgementError):
                self.tracker.claim_cumulative(id(txn), offset)

    @precondition(lambda self: any(not it.stored for it in self.open))
    @rule()
    def stored(self) -> None:
        """The store has a transaction's acknowledgements; it can be committed now."""
        txn = next(it for it in self.open if not it.stored)
        self.pending[id(txn)] = set(txn.claimed)
        txn.stored = True

    @precondition(lambda self: any(it.stored for it in self.open))
    @rule(known=st.booleans())
    def committed(self, known: bool) -> None:  # noqa: FBT001 - drawn
        """A transaction commits; the store hears of it later, this member perhaps never."""
        txn = next(it for it in self.open if it.stored)
        txn.claimed = set(self.pending[id(txn)]) | txn.claimed
        self.pending[id(txn)] = set(txn.claimed)
        self.open.remove(txn)
        if known:
            self.tracker.committed(id(txn))
            self.acknowledged |= txn.claimed
            self.store_acknowledged |= self.pending.pop(id(txn))
        else:
            self.tracker.unsettled(id(txn), "aborted")
            self.unsettled.append(txn)

    @precondition(lambda self: self.open)
    @rule(pick=PICKS)
    def aborted(self, pick: int) -> None:
        """A transaction aborts, whether the store has heard of it or not."""
        txn = self.open[pick % len(self.open)]
        self.open.remove(txn)
        self.tracker.unsettled(id(txn), "aborted")
        self.unsettled.append(txn)

    @rule(pick=PICKS, commit=st.booleans())
    def settled(self, pick: int, commit: bool) -> None:  # noqa: FBT001 - drawn
        """The store hears of the end of a transaction, of this member or another."""
        open_ones = {id(it) for it in self.open}
        ended = sorted((it for it in self.pending if it not in open_ones), key=str)
        if ended:
            offsets = self.pending.pop(ended[pick % len(ended)])
            if commit:
                self.store_acknowledged |= offsets
                self.acknowledged |= offsets

    @rule(ms=st.integers(1, 2 * DELAY_MS))
    def time_passes(self, ms: int) -> None:
        """What is due comes again, and questions are asked."""
        self.now_ms += ms
        for again in self.tracker.redelivered(self.now_ms):
            offset = again.payload
            if offset in self.nacked:
                assert self.nacked.pop(offset) <= self.now_ms
            for txn in self.unsettled:
                txn.claimed.discard(offset)
            self.check_handed_over(offset)
        self.questions += self.tracker.tick(self.now_ms)

    @precondition(lambda self: self.questions)
    @rule(lost=st.booleans())
    def answered(self, lost: bool) -> None:  # noqa: FBT001 - drawn
        """The store answers with its present state, or does not answer."""
        ask = self.questions.pop(0)
        self.tracker.described(ask.number, None if lost else self.acks(), self.now_ms)

    def not_acknowledged(self) -> set[int]:
        """What was taken and is not acknowledged, in this member's own view or anybody's."""
        claimed = set[int]().union(*(it.claimed for it in [*self.open, *self.unsettled]))
        held = set(self.tracker._held)
        return (
            self.with_application
            | self.nacked.keys()
            | (claimed - self.acknowledged)  # the store may have told what became of it
            | held
            | set(self.tracker._unsettled)
            | set(self.tracker.redeliveries.waiting)
        )

    @invariant()
    def the_cursor_loses_nothing(self) -> None:
        """G: everything the commit says is acknowledged is, or was never visible."""
        if not hasattr(self, "tracker"):
            return
        cursor = self.tracker.cursor(self.position)
        assert cursor.fields == ("g=1",)
        decoded = decode(cursor.offset, encode(cursor))
        assert decoded == cursor
        said = set(range(cursor.offset)) | {
            it for first, end in cursor.acknowledged for it in range(first, end)
        }
        open_ones = self.with_application | self.nacked.keys()
        for txn in self.open:
            open_ones |= txn.claimed
        assert not said & open_ones
        assert not (said - self.acknowledged) & set(self.records)
        assert not (said - self.acknowledged) & self.all_pending() & set(range(self.position))


TestTracker = TrackerRules.TestCase
TestTracker.settings = settings(max_examples=examples(300), stateful_step_count=30)
