"""A client's stock of transactions, whatever callers do and however refills end.

*Source*: rules C9.
"""

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.coordinator.pool import (
    PARTITIONS_MAX,
    POOLED_MAX,
    POOLED_MS_MAX,
    SUBSCRIPTIONS_MAX,
    PoolEffect,
    Refill,
    ReleaseUnused,
    TransactionPool,
    Used,
)
from stilltide.schemas.coordinator.transactions import Registered
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition
from tests.support.examples import examples

PICK = st.integers(0, 10**6)
PARTITIONS = [TopicPartition("orders", number) for number in range(PARTITIONS_MAX + 4)]
TIMEOUTS_MS = st.sampled_from([500, 60_000])
MANY = 12
"""Transactions opened, before something happens that ends the play of refilling and taking."""

READ = [SubscriptionId(data, f"group-{n}") for data in PARTITIONS[:8] for n in range(5)]
assert len(READ) > SUBSCRIPTIONS_MAX
FEW = st.lists(st.sampled_from(PARTITIONS[:3]), max_size=3)
FEW_READ = st.lists(st.sampled_from(READ[:3]), max_size=2)


@dataclass
class Opened:
    """A transaction that a coordinator has opened ahead, by a clock that is the client's."""

    timeout_ms: int
    ends_ms: float
    asked_ms: float
    subscriptions: frozenset[SubscriptionId]
    taken: bool = False
    released: bool = False


class Pooling(RuleBasedStateMachine):
    """Callers, a coordinator that answers when it likes, and what each transaction came to."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = TransactionPool()
        self.now_ms = 0.0
        self.asked: list[tuple[Refill, float]] = []
        self.answered: list[tuple[int, int]] = []
        self.opened: list[Opened] = []
        self.running: list[int] = []  # time-outs of transactions that callers have open
        self.closed = False

    # -- callers

    @rule(
        timeout_ms=TIMEOUTS_MS,
        used=st.sampled_from([*PARTITIONS[:4], *READ[:4]]),
        count=st.integers(1, 3),
    )
    def begin(self, timeout_ms: int, used: Used, count: int):
        """Some transactions begin; each that is taken is usable, and taken only once."""
        for _ in range(count):
            self.running.append(timeout_ms)
            taken = self.pool.take(timeout_ms, used, self.now_ms)
            if taken is None:
                continue
            opened = self.opened[taken.sequence]
            assert not opened.taken
            assert not opened.released
            assert opened.timeout_ms == timeout_ms
            assert opened.ends_ms - self.now_ms >= timeout_ms, "its time-out is not whole"
            assert used in taken.registered or used in opened.subscriptions
            assert taken.subscriptions == opened.subscriptions
            opened.taken = True

    @rule(timeout_ms=TIMEOUTS_MS, wrote=FEW, read=FEW_READ, count=st.integers(1, 5))
    def fill(
        self, timeout_ms: int, wrote: list[TopicPartition], read: list[SubscriptionId], count: int
    ):
        """Transactions go round, and what they ask for is on its way."""
        for _ in range(count):
            self.begin(timeout_ms, [*wrote, *read, PARTITIONS[0]][0], 1)
            self.end(wrote, read, 1)
        self.wait(0)

    @precondition(lambda self: self.running)
    @rule(wrote=FEW, read=FEW_READ, count=st.integers(1, 3))
    def end(self, wrote: list[TopicPartition], read: list[SubscriptionId], count: int):
        """Some transactions end, having written and acknowledged there."""
        for timeout_ms in self.running[:count]:
            self.pool.ending(timeout_ms, wrote, read, self.now_ms)
        del self.running[:count]

    @precondition(lambda self: self.running and len(self.opened) > MANY)
    @rule()
    def end_having_written_everywhere(self):
        """More partitions than a transaction opened ahead is registered with."""
        self.pool.ending(self.running.pop(), PARTITIONS, (), self.now_ms)

    @precondition(lambda self: self.running and len(self.opened) > MANY)
    @rule(wrote=FEW)
    def end_having_read_everywhere(self, wrote: list[TopicPartition]):
        """More subscriptions than a transaction opened ahead is registered with."""
        self.pool.ending(self.running.pop(), wrote, READ, self.now_ms)

    @precondition(lambda self: len(self.opened) > MANY)
    @rule(timeout_ms=TIMEOUTS_MS)
    def burst(self, timeout_ms: int):
        """More transactions at once than are ever pooled."""
        for _ in range(POOLED_MAX + 1):
            self.pool.take(timeout_ms, PARTITIONS[-1], self.now_ms)
            self.pool.ending(timeout_ms, PARTITIONS[:1], (), self.now_ms)

    @precondition(lambda self: len(self.opened) > MANY)
    @rule()
    def close(self):
        """The client is closed; transactions that run may still end."""
        self.closed = True
        self.run(self.pool.close())

    # -- the coordinator and the way to it

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, delay_ms=st.sampled_from([0, 900, 1100]))
    def open(self, pick: int, delay_ms: int):
        """A refill is answered; its transactions' time began when the request arrived."""
        refill, asked_ms = self.asked.pop(pick % len(self.asked))
        arrived_ms = self.now_ms
        self.wait(delay_ms)
        first = len(self.opened)
        ends_ms = arrived_ms + refill.timeout_ms + POOLED_MS_MAX
        read = frozenset(refill.subscriptions)
        self.opened += [
            Opened(refill.timeout_ms, ends_ms, asked_ms, read) for _ in range(refill.count)
        ]
        self.answered.append((refill.number, first))
        self.refilled(refill.number, first, refill.partitions)

    @precondition(lambda self: self.answered)
    @rule(pick=PICK)
    def open_twice(self, pick: int):
        """An answer comes again."""
        number, first = self.answered[pick % len(self.answered)]
        self.refilled(number, first, ())

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, refused=st.booleans())
    def fail(self, pick: int, *, refused: bool):
        """A refill is refused, or never answered."""
        refill, _ = self.asked.pop(pick % len(self.asked))
        self.pool.not_refilled(refill.number, refused=refused)

    @rule(elapsed_ms=st.sampled_from([1, 100, 600, 1000, 11_000]))
    def wait(self, elapsed_ms: int):
        """Time passes, with a tick at each deadline."""
        until_ms = self.now_ms + elapsed_ms
        while (due_ms := self.pool.deadline_ms) is not None and due_ms <= until_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.run(self.pool.tick(self.now_ms))
        self.now_ms = until_ms

    # -- what must hold

    @invariant()
    def is_bounded(self):
        """C9: in stock and on the way together."""
        in_stock = sum(not one.taken and not one.released for one in self.opened)
        assert in_stock + sum(refill.count for refill, _ in self.asked) <= POOLED_MAX

    @invariant()
    def releases_what_is_old(self):
        """C9: an open transaction holds M back, so no unused one stays for long."""
        for one in self.opened:
            if not one.taken and not one.released and not self.closed:
                due_ms = self.pool.deadline_ms
                assert due_ms is not None
                assert due_ms <= one.asked_ms + POOLED_MS_MAX

    @invariant()
    def leaves_nothing_behind_when_closed(self):
        """C9: what is opened after the closing is released as well."""
        if self.closed:
            assert all(one.taken or one.released for one in self.opened)
            assert not self.pool.tick(self.now_ms)

    def refilled(self, number: int, first: int, partitions: tuple[TopicPartition, ...]):
        """A refill's transactions are open."""
        registered = {data: Registered(data, EndOffset(0), b"") for data in partitions}
        self.run(self.pool.refilled(number, first, registered))

    def run(self, effects: list[PoolEffect]):
        """Does what a driver does; what was taken or released is not released again."""
        for effect in effects:
            match effect:
                case Refill(_, _, count, partitions, subscriptions):
                    assert not self.closed
                    assert 1 <= count <= POOLED_MAX
                    assert len(partitions) <= PARTITIONS_MAX
                    assert len(subscriptions) <= SUBSCRIPTIONS_MAX
                    assert partitions or subscriptions
                    self.asked.append((effect, self.now_ms))
                case ReleaseUnused(sequences):
                    assert 1 <= len(sequences) <= POOLED_MAX
                    for sequence in sequences:
                        opened = self.opened[sequence]
                        assert not opened.taken
                        assert not opened.released
                        opened.released = True

    def teardown(self):
        """What demand does not reach is gone after `POOLED_MS_MAX`, and nothing is left."""
        for refill, _ in self.asked:
            self.pool.not_refilled(refill.number, refused=False)
        self.wait(POOLED_MS_MAX + 1)
        for refill, _ in self.asked:
            self.pool.not_refilled(refill.number, refused=False)
        assert all(one.taken or one.released for one in self.opened)
        assert self.pool._held == 0
        assert self.pool.deadline_ms is None


Pooling.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=50)
TestPool = Pooling.TestCase
