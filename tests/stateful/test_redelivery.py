"""G2: messages that fail, dead letters, a store, and members that are killed."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.pending_ack.cursor import Cursor
from stilltide.pipeline.core.pending_ack.redeliveries import (
    DeadLetter,
    Redeliver,
    Redelivery,
    RedeliveryPolicy,
)
from stilltide.pipeline.core.pending_ack.tracker import Tracker
from stilltide.schemas.pending_ack.acknowledgements import Acks, PendingAcks
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.examples import examples

DATA = TopicPartition("orders", 0)
COUNT = 12
DELIVERIES_MAX = 3
POLICY = RedeliveryPolicy(100, 3, 500, DELIVERIES_MAX)
THEIRS = TxnId(1, 1)
PICKS = st.integers(0, 2**16)


@dataclass
class Message:
    """What this member has seen of one message."""

    deliveries: int = 0
    failures: int = 0
    not_before_ms: float = 0.0
    undecodable: bool = False


@dataclass
class World:
    """What is durable: it outlives members."""

    acknowledged: set[int] = field(default_factory=set[int])
    dead_letters: set[int] = field(default_factory=set[int])
    pending: dict[int, bool] = field(default_factory=dict[int, bool])
    """Offsets that an open transaction acknowledges, and whether it sends their dead letter."""

    def settle(self, offset: int, *, commit: bool) -> None:
        """A transaction ends: dead letter and acknowledgement take effect together, or neither."""
        is_dead = self.pending.pop(offset)
        if commit:
            assert offset not in self.acknowledged, "acknowledged twice"
            self.acknowledged.add(offset)
            if is_dead:
                self.dead_letters.add(offset)


class RedeliveryRules(RuleBasedStateMachine):
    """An application that fails, with a sender of dead letters whose transactions may fail."""

    @initialize()
    def begin(self) -> None:
        """The first member attaches."""
        self.now_ms = 0.0
        self.world = World()
        self.attach()

    def attach(self) -> None:
        """A member begins: it knows what the store knows, and no count of an earlier member."""
        self.messages = {offset: Message() for offset in range(COUNT)}
        self.next = 0
        self.out: set[int] = set()
        self.dead: set[int] = set()
        self.claimed: set[int] = set()
        self.tracker = Tracker[int](DATA, Cursor(Offset(0)), self.acks(), redelivery=POLICY)

    def acks(self) -> Acks:
        """What the store says now."""
        done = RangeSet((it, it + 1) for it in sorted(self.world.acknowledged)).ranges()
        held = RangeSet((it, it + 1) for it in sorted(self.world.pending)).ranges()
        pending = (PendingAcks(THEIRS, held, None),) if held else ()
        return Acks(EndOffset(0), done, pending, b"m" * 16)

    def delivered(self, offset: int, deliveries: int) -> None:
        """The application is given a message."""
        message = self.messages[offset]
        message.deliveries += 1
        assert message.deliveries == deliveries <= DELIVERIES_MAX
        assert message.not_before_ms <= self.now_ms, "delivered before its back-off"
        assert offset not in self.world.acknowledged
        assert offset not in self.out | self.dead | self.claimed
        assert not message.undecodable
        self.out.add(offset)

    def failed(self, offset: int) -> None:
        """A delivery, or the sending of a dead letter, has failed."""
        message = self.messages[offset]
        message.failures += 1
        if message.failures != DELIVERIES_MAX:  # then its dead letter is sent at once
            delay_ms = min(POLICY.first_ms * POLICY.factor ** (message.failures - 1), POLICY.max_ms)
            message.not_before_ms = self.now_ms + delay_ms

    @precondition(lambda self: self.next < COUNT)
    @rule(count=st.integers(1, COUNT))
    def take(self, count: int) -> None:
        """The next messages are read."""
        for offset in range(self.next, min(self.next + count, COUNT)):
            if self.tracker.taken(offset, offset):
                self.delivered(offset, 1)
        self.next = min(self.next + count, COUNT)

    @precondition(lambda self: self.out)
    @rule(pick=PICKS)
    def acknowledge(self, pick: int) -> None:
        """A message was processed."""
        offset = sorted(self.out)[pick % len(self.out)]
        self.tracker.acknowledge(offset)
        self.out.remove(offset)
        assert offset not in self.world.acknowledged
        self.world.acknowledged.add(offset)

    @precondition(lambda self: self.out)
    @rule(pick=PICKS, error=st.text(max_size=3000))
    def negative_acknowledge(self, pick: int, error: str) -> None:
        """A message could not be processed."""
        offset = sorted(self.out)[pick % len(self.out)]
        self.tracker.negative_acknowledge(offset, self.now_ms, error)
        self.out.remove(offset)
        self.failed(offset)

    @precondition(lambda self: self.out)
    @rule(pick=PICKS)
    def undecodable(self, pick: int) -> None:
        """A message cannot be decoded, so that the application is not given it."""
        offset = sorted(self.out)[pick % len(self.out)]
        self.tracker.negative_acknowledge(offset, self.now_ms, "no schema", undecodable=True)
        self.out.remove(offset)
        message = self.messages[offset]
        message.undecodable, message.failures, message.not_before_ms = True, 1, self.now_ms

    @precondition(lambda self: self.out | self.dead)
    @rule(pick=PICKS)
    def begin_transaction(self, pick: int) -> None:
        """A transaction of the application, or of the sender of dead letters, claims a message."""
        found = sorted(self.out | self.dead)
        offset = found[pick % len(found)]
        self.tracker.claim(offset, offset)
        self.world.pending[offset] = offset in self.dead
        self.out.discard(offset)
        self.dead.discard(offset)
        self.claimed.add(offset)

    @precondition(lambda self: self.world.pending)
    @rule(pick=PICKS, commit=st.booleans(), heard=st.booleans())
    def end_transaction(self, pick: int, *, commit: bool, heard: bool) -> None:
        """A transaction of this member or of one that was killed ends; the answer may be lost."""
        pending = sorted(self.world.pending)
        offset = pending[pick % len(pending)]
        self.world.settle(offset, commit=commit)
        if offset not in self.claimed:
            return
        if commit and heard:
            self.tracker.committed(offset)
            self.claimed.remove(offset)
        else:
            self.tracker.unsettled(offset, "aborted")

    @rule(ms=st.integers(1, 700))
    def time_passes(self, ms: int) -> None:
        """The store answers what it is asked, and what is due comes again."""
        self.now_ms += ms
        for ask in self.tracker.tick(self.now_ms):
            before = {it for it in self.claimed if it not in self.tracker._claimed}
            self.tracker.described(ask.number, self.acks(), self.now_ms)
            for offset in before - self.tracker._unsettled.keys():
                self.claimed.remove(offset)
                if offset not in self.world.acknowledged:
                    self.failed(offset)
        for redelivery in self.tracker.redelivered(self.now_ms):
            self.come_again(redelivery)

    def come_again(self, redelivery: Redelivery[int]) -> None:
        """A message is due."""
        if isinstance(redelivery, Redeliver):
            self.delivered(redelivery.payload, redelivery.deliveries)
            return
        message = self.messages[redelivery.payload]
        assert isinstance(redelivery, DeadLetter)
        assert redelivery.deliveries == message.deliveries
        assert message.undecodable or message.deliveries == DELIVERIES_MAX <= message.failures
        assert message.not_before_ms <= self.now_ms
        assert len(redelivery.error.encode()) <= 1024
        self.dead.add(redelivery.payload)

    @rule()
    def killed(self) -> None:
        """The member is killed; another one attaches, while transactions are still open."""
        self.attach()

    @invariant()
    def nothing_is_lost_or_unbounded(self) -> None:
        """Every message is acknowledged or kept, and only kept messages cost memory."""
        if not hasattr(self, "tracker"):
            return
        tracker = self.tracker
        kept = {*range(self.next)} - self.world.acknowledged
        open_ones = {offset for one in tracker._open for offset in one}
        assert kept <= open_ones
        assert tracker.unacknowledged <= self.next
        assert tracker.redeliveries._failures.keys() <= open_ones
        assert len(tracker.redeliveries._due) <= 2 * len(tracker.redeliveries.waiting) + 65
        assert self.world.dead_letters <= self.world.acknowledged

    def teardown(self) -> None:
        """With nothing but failures from now on, every message ends as one dead letter."""
        if not hasattr(self, "tracker"):
            return
        for _ in range(40 * COUNT):
            if len(self.world.acknowledged) == COUNT:
                break
            if self.next < COUNT:
                self.take(COUNT)
            for offset in sorted(self.out):
                self.negative_acknowledge(sorted(self.out).index(offset), "no")
            while self.dead:
                self.begin_transaction(sorted(self.out | self.dead).index(min(self.dead)))
            while self.world.pending:
                self.end_transaction(0, commit=True, heard=True)
            self.time_passes(600)
        assert self.world.acknowledged == {*range(COUNT)}


TestRedelivery = RedeliveryRules.TestCase
TestRedelivery.settings = settings(max_examples=examples(200), stateful_step_count=40)
