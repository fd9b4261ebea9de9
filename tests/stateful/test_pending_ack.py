"""A pending-ack log, its members and coordinators when everything that can go wrong does.

*Source*: rules G, B, C0, C1, C4, C8. Requests are lost, repeated and reordered; owners are
replaced at any moment and linger as zombies; members are replaced and go on asking; transactions
acknowledge without being registered; the state survives being copied into a base at any point.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.buffered_log.bases import BaseLimits, Trim
from stilltide.pipeline.core.pending_ack.machine import (
    AckReply,
    PendingAckEffect,
    PendingAckStore,
    WriteAckBase,
)
from stilltide.pipeline.core.pending_ack.state import PendingAckState
from stilltide.schemas.log_frames import Base, Fence, Noop
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    Acknowledge,
    AckQuestion,
    AckRequest,
    Attach,
    CursorMoved,
    DescribeAcks,
    PendingAckRecord,
    Settle,
)
from stilltide.schemas.pending_ack.codec import decode_request, encode_request, encode_state
from stilltide.schemas.service.envelopes import Done, Request
from stilltide.schemas.values import (
    EndOffset,
    Offset,
    Range,
    Ranges,
    SubscriptionId,
    TopicPartition,
    TxnId,
)
from tests.support.examples import examples
from tests.support.pending_ack.judge import HOUR_MS, Judge, offsets

READ = [SubscriptionId(TopicPartition("orders", n), "billing") for n in range(2)]
TOPIC_IDS = (*3 * [b"1" * 16], b"", b"2" * 16)
PICK = st.integers(0, 10**6)
OFFSETS = st.integers(0, 9)
LIMITS = BaseLimits(interval_ms=1, dead_floor=6, dead_factor=1)
UP_TO = st.none() | st.none() | OFFSETS
FEW = st.lists(OFFSETS, max_size=3).map(tuple)


@dataclass(eq=False)
class Owner:
    """A process that owns the log, or thinks so; `until` is the fence that replaced it."""

    machine: PendingAckStore
    position: int
    until: int | None = None
    queue: list["Append"] = field(default_factory=list)


@dataclass(eq=False)
class Append:
    """A record on its way into the log; `question` is answered when it is read back (C1)."""

    owner: Owner
    record: PendingAckRecord
    question: AckRequest | None = None


@dataclass(eq=False)
class Transaction:
    """A transaction at its coordinator, and its acknowledgements that were accepted."""

    txn: TxnId
    registered: list[SubscriptionId]
    committed: bool | None = None
    settled: set[SubscriptionId] = field(default_factory=set)
    promised: dict[SubscriptionId, set[int]] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """C4: every subscription registered has said that it is settled."""
        return self.committed is not None and self.settled >= set(self.registered)


class PendingAcknowledgements(RuleBasedStateMachine):
    """Says what happens next; the judge reads the same log in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000_000
        self.judge = Judge()
        self.log: list[Append] = []  # also what was trimmed, for the judge
        self.log_start = 0
        self.sent: list[AckRequest] = []
        self.right: dict[int, set] = {}  # by place in the log: the refusals that are right
        self.members: list[tuple[SubscriptionId, bytes]] = []
        self.transactions: list[Transaction] = []
        self.zombies: list[Owner] = []
        self.new_owner()
        for subscription in READ:
            self.attach(READ.index(subscription), 0, ())
        for pick in range(3):
            self.open(pick, READ)
        self.run_calmly()

    # -- what members do

    @rule(pick=PICK, cursor=OFFSETS, more=FEW, topic_id=st.sampled_from(TOPIC_IDS))
    def attach(self, pick: int, cursor: int, more: tuple[int, ...], topic_id: bytes = b""):
        """The group gives a partition to another member; its commit may hold anything.

        The topic may have been created again meanwhile (G3).
        """
        member = (len(self.members) + 1).to_bytes(16, "big")
        subscription = READ[pick % len(READ)]
        self.members.append((subscription, member))
        self.send(
            subscription, Attach(member, EndOffset(cursor // 3), ranges_of(more), topic_id=topic_id)
        )

    @rule(pick=PICK, calm=st.booleans())
    def claim_again(self, pick: int, *, calm: bool):
        """A copy of an older claim, perhaps of a member that was replaced."""
        subscription, member = self.members[pick % len(self.members)]
        self.send(subscription, Attach(member, EndOffset(0), ()))
        if calm:
            self.run_calmly()

    @precondition(lambda self: self.transactions)
    @rule(pick=PICK, which=PICK, some=FEW, up_to=UP_TO, calm=st.booleans())
    def acknowledge(
        self, pick: int, which: int, some: tuple[int, ...], up_to: int | None, *, calm: bool
    ):
        """By the newest member, mostly; in a transaction in any state, registered or not."""
        latest = dict(self.members)
        subscription, member = list(latest.items())[pick % len(latest)]
        if pick % 5 == 0:
            subscription, member = self.members[pick % len(self.members)]
        txn = self.transactions[-1 - which % min(4, len(self.transactions))].txn
        self.send(subscription, Acknowledge(txn, member, tuple(map(Offset, some)), up_to))
        if calm:
            self.run_calmly()

    @rule(pick=PICK, cursor=OFFSETS, more=FEW)
    def move_cursor(self, pick: int, cursor: int, more: tuple[int, ...]):
        """A member says what its group has committed, also of what is pending."""
        subscription, member = self.members[-1 - pick % min(3, len(self.members))]
        self.send(subscription, CursorMoved(member, EndOffset(cursor), ranges_of(more)))

    @rule(pick=PICK)
    def inquire(self, pick: int):
        """C1: a question that changes nothing."""
        self.send(READ[pick % len(READ)], DescribeAcks())

    # -- what coordinators do

    @rule(pick=PICK, registered=st.sampled_from([READ, READ[:1], []]))
    def open(self, pick: int, registered: list[SubscriptionId]):
        """Two coordinators open transactions, one after the other."""
        coordinator = pick % 2
        sequence = sum(one.txn.coordinator == coordinator for one in self.transactions)
        self.transactions.append(Transaction(TxnId(coordinator, sequence), registered))

    @precondition(lambda self: self.transactions)
    @rule(pick=PICK, committed=st.booleans(), calm=st.booleans())
    def end(self, pick: int, *, committed: bool, calm: bool):
        """C4: COMMITTING or ABORTING is durable; every registered subscription is settled."""
        one = self.transactions[-1 - pick % min(4, len(self.transactions))]
        if one.committed is None:
            one.committed = committed
        self.settle(one)
        if calm:
            self.run_calmly()

    def settle(self, one: Transaction):
        """Sends a settle wherever none was answered yet."""
        for subscription in one.registered:
            if subscription not in one.settled:
                coordinator = one.txn.coordinator
                low_watermark = min(
                    each.txn.sequence
                    for each in self.transactions
                    if each.txn.coordinator == coordinator and not each.ended
                )
                assert one.committed is not None
                self.send(subscription, Settle(one.txn, one.committed, low_watermark))

    # -- what the path does

    @precondition(lambda self: self.sent)
    @rule(pick=PICK, again=st.booleans())
    def arrive(self, pick: int, *, again: bool):
        """In any order, lost or again and again."""
        at = pick % len(self.sent)
        request = self.sent[at] if again else self.sent.pop(at)
        self.append(self.owner, request)

    @precondition(lambda self: self.sent)
    @rule()
    def all_arrive(self):
        """For once in order, and none is lost."""
        sent, self.sent = self.sent, []
        for request in sent:
            self.append(self.owner, request)

    @rule()
    def run_calmly(self):
        """For once nothing is lost at all."""
        self.all_arrive()
        self.land(len(self.owner.queue))
        self.read(self.owner, len(self.log))

    @rule(elapsed_ms=st.sampled_from([1, 1000, HOUR_MS]))
    def pass_time(self, elapsed_ms: int):
        """Requests older than an hour are gone from every path."""
        self.now_ms += elapsed_ms
        if elapsed_ms == HOUR_MS:
            self.sent.clear()

    # -- what owners do

    @precondition(lambda self: self.owner.queue)
    @rule(count=st.integers(1, 4))
    def land(self, count: int):
        """The owner's oldest appends are effective."""
        for append in self.owner.queue[:count]:
            self.right[len(self.log)] = self.judge.read(append.record)
            self.log.append(append)
        del self.owner.queue[:count]

    @precondition(lambda self: self.owner.queue)
    @rule()
    def lose_append(self):
        """B5: it will never be effective."""
        body = self.owner.queue.pop(0).record.body
        if isinstance(body, Base):
            self.owner.machine.base_lost(body.as_of, self.now_ms)

    @rule(pick=PICK, count=st.integers(1, 4))
    def read_back(self, pick: int, count: int):
        """The owner, or a zombie up to its fence, reads the next entries."""
        processes = [self.owner, *self.zombies]
        self.read(processes[pick % len(processes)], count)

    @rule(count=st.integers(0, 4))
    def take_over(self, count: int):
        """B1, C8: another process fences the owner, and knows what a whole replay would know."""
        self.land(count)
        self.owner.until = len(self.log)
        self.owner.queue.clear()
        self.zombies = [self.owner]
        replayed = self.owner_state()
        self.new_owner()
        assert self.owner.machine.state.base() == replayed

    @precondition(lambda self: self.owner.machine.deadline_ms is not None)
    @rule(pick=PICK)
    def tick(self, pick: int):
        """C8: a base in two pieces, when one is due; it may be torn by a fence."""
        processes = [self.owner, *self.zombies]
        owner = processes[pick % len(processes)]
        self.run(owner, owner.machine.tick(self.now_ms), set())

    # -- what must hold

    @invariant()
    def nothing_is_pending_in_two_transactions(self):
        """G: not even one individually and one cumulatively."""
        for held in self.judge.held.values():
            assert all(len(held.pending_in(offset)) <= 1 for offset in range(12))

    @invariant()
    def a_committed_acknowledgement_is_kept(self):
        """G: what was answered Done is acknowledged once its commit is settled."""
        for one in self.transactions:
            for subscription in one.settled if one.committed else ():
                promised = one.promised.get(subscription, set())
                held = self.judge.held[subscription]
                assert promised <= held.acknowledged.keys() | held.former

    @invariant()
    def an_aborted_acknowledgement_counts_for_nothing(self):
        """G: no offset is acknowledged in the name of a transaction that was not committed."""
        committed = {one.txn for one in self.transactions if one.committed and one.registered}
        for held in self.judge.held.values():
            by = {who for who in held.acknowledged.values() if isinstance(who, TxnId)}
            assert by <= committed

    @invariant()
    def an_owner_that_has_read_all_says_what_the_log_says(self):
        """C0: the same log means the same to the owner and to the judge."""
        if self.owner.position == len(self.log):
            for subscription in READ:
                state = self.owner.machine.state
                self.judge.check_acks(subscription, state.acks(subscription))
                if subscription in state.subscriptions:
                    self.judge.check_counts(subscription, state.subscriptions[subscription])

    def teardown(self):
        """When faults stop, every transaction ends and nothing is pending."""
        for one in self.transactions:
            one.committed = bool(one.committed)
        for coordinator in range(2):  # one more, whose settle brings the last watermark
            self.open(coordinator, READ[:1])
            self.transactions[-1].committed = False
        for _ in range(3):
            for one in self.transactions:
                self.settle(one)
            self.run_calmly()
        assert all(one.ended for one in self.transactions)
        for coordinator in range(2):
            last = next(o for o in reversed(self.transactions) if o.txn.coordinator == coordinator)
            self.send(READ[0], Settle(last.txn, False, last.txn.sequence + 1))
        self.run_calmly()
        assert all(not self.owner.machine.state.acks(one).pending for one in READ)

    # -- the world

    def send(self, subscription: SubscriptionId, body: AckBody):
        """Every request crosses the path as bytes."""
        request = Request(b"c" * 16, len(self.sent) + 1, 0, 0, AckQuestion(subscription, body))
        self.sent.append(decode_request(encode_request(request)))

    def append(self, owner: Owner, request: AckRequest):
        """Appends as the driver does, a no-op for a question (C1)."""
        question = isinstance(request.body.ask, DescribeAcks)
        record = PendingAckRecord(Noop() if question else request, self.now_ms)
        owner.queue.append(Append(owner, record, request if question else None))

    def new_owner(self):
        """B1, C8: replays what is left of the log, from its first base if trimmed, then serves."""
        epoch = Offset(len(self.log))
        machine = PendingAckStore(0, Offset(self.log_start), base_limits=LIMITS)
        owner = Owner(machine, epoch + 1)
        for offset in range(self.log_start, epoch):
            record = self.log[offset].record
            if not isinstance(record.body, Fence):
                effects = machine.applied(Offset(offset), [record], own=False, now_ms=self.now_ms)
                assert not effects, "acts in a replay"
        self.log.append(Append(owner, PendingAckRecord(Fence(bytes(16)), self.now_ms)))
        machine.serve(epoch, self.now_ms)
        self.owner = owner

    def owner_state(self):
        """What a reader of the whole log holds."""
        state = PendingAckState()
        for append in self.log:
            if isinstance(append.record.body, Request):
                state.apply(append.record.body, append.record.at_ms)
        return state.base()

    def read(self, owner: Owner, count: int):
        """Reads on; each answer is held against what the log says as of its record."""
        until = len(self.log) if owner.until is None else owner.until
        while count and owner.position < until:
            append, right = self.log[owner.position], self.right[owner.position]
            owner.position, count = owner.position + 1, count - 1
            own = append.owner is owner
            if isinstance(append.record.body, Fence):
                continue
            effects = owner.machine.applied(
                Offset(owner.position - 1), [append.record], own=own, now_ms=self.now_ms
            )
            if append.question is not None and own:
                owner.machine.asked(append.question, operator=True)
            self.run(owner, effects, right)

    def run(self, owner: Owner, effects: list[PendingAckEffect], right: set):
        """Does what a driver does, and checks what must be durable first."""
        for effect in effects:
            match effect:
                case AckReply(request, answer):
                    mine = [one.record.body for one in self.log if one.owner is owner]
                    assert request in mine, "answers what another owner appended"
                    self.answered(request, answer, right)
                case WriteAckBase(as_of, state):
                    data = b"".join(encode_state(state))
                    halves = data[: len(data) // 2], data[len(data) // 2 :]
                    for index, half in enumerate(halves):
                        record = PendingAckRecord(Base(as_of, index, 2, half), self.now_ms)
                        if owner is self.owner:
                            owner.queue.append(Append(owner, record))
                case Trim(offset):
                    assert not isinstance(self.log[offset].record.body, Fence)
                    self.log_start = max(self.log_start, offset)
                    owner.machine.trimmed(offset)

    def answered(self, request: AckRequest, answer: AckAnswer, right: set):
        """C1: it left behind its own entry; the judge may be further on, so only codes compare."""
        subscription, body = request.body
        if right or isinstance(answer, Done):
            self.judge.check_answer(request, answer, right)
        if answer != Done():
            return
        if isinstance(body, Settle):
            one = next(each for each in self.transactions if each.txn == body.txn)
            one.settled.add(subscription)
        elif isinstance(body, Acknowledge):
            one = next(each for each in self.transactions if each.txn == body.txn)
            up_to = -1 if body.cumulative_offset is None else body.cumulative_offset
            if subscription in one.registered:
                promised = one.promised.setdefault(subscription, set())
                promised.update(body.offsets, range(up_to + 1))


def ranges_of(some: tuple[int, ...]) -> Ranges:
    """A range of one offset for every second one, so that none touch."""
    return tuple(
        Range(Offset(2 * n), EndOffset(2 * n + 1)) for n in sorted({one // 2 for one in some})
    )


assert offsets(ranges_of((3, 3, 8))) == {2, 8}

PendingAcknowledgements.TestCase.settings = settings(
    max_examples=examples(400), stateful_step_count=60
)
TestPendingAck = PendingAcknowledgements.TestCase
