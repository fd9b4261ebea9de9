"""A coordinator, its clients and its markers when everything that can go wrong does.

*Source*: rules C0, C1, C2, C3, C4, C5, C6, C7, C8, L1, L2, L3. What was acknowledged is in the
state for ever. The request path loses, repeats and reorders; owners are replaced at any moment and
linger as zombies, whose appends readers ignore; markers and reads of end offsets fail. The log is
trimmed behind bases, so that a new owner recovers from a base.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from stilltide.pipeline.core.coordinator.base import state_of
from stilltide.pipeline.core.coordinator.state import TxnState
from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Decide,
    Describe,
    End,
    EndPrepared,
    ListTransactions,
    Open,
    Opened,
    Prepare,
    Release,
    WriteBarrier,
    Written,
)
from stilltide.schemas.log_frames import Base, Noop
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition
from tests.support.coordinator.judge import HOUR_MS
from tests.support.coordinator.world import ASK_TIMEOUT_MS, PARTITIONS, CoordinatorWorld
from tests.support.examples import examples

PICK = st.integers(0, 10**6)
SUBSCRIPTIONS = st.lists(
    st.builds(SubscriptionId, st.sampled_from(PARTITIONS[:2]), st.just("billing")), max_size=2
).map(tuple)
SECRETS = (b"s" * 32, b"t" * 32)
SOME = st.lists(st.sampled_from(PARTITIONS), max_size=2).map(tuple)


class Coordinated(RuleBasedStateMachine):
    """Says what happens next; the world checks each effect, the judge each record."""

    def __init__(self) -> None:
        super().__init__()
        self.world = CoordinatorWorld()

    @initialize(data=SOME, more=SOME)
    def begin(self, data: tuple[TopicPartition, ...], more: tuple[TopicPartition, ...]):
        """Each client has opened transactions: what happens to open ones is the question."""
        for pick, one in enumerate((data, more)):
            self.world.ask(pick, Open(5000 * (1 + pick), 2, self.world.registrations(one)))
        self.world.talk_calmly()

    # -- what clients do

    @rule(
        pick=PICK,
        count=st.integers(1, 3),
        data=SOME,
        read=SUBSCRIPTIONS,
        timeout_ms=st.sampled_from([500, 3000, 9000]),
    )
    def open(
        self,
        pick: int,
        count: int,
        data: tuple[TopicPartition, ...],
        read: tuple[SubscriptionId, ...],
        timeout_ms: int,
    ):
        """C9: one request opens several transactions."""
        self.world.ask(pick, Open(timeout_ms, count, self.world.registrations(data), read))

    @rule(pick=PICK, data=SOME)
    def add_partitions(self, pick: int, data: tuple[TopicPartition, ...]):
        """C2: to a transaction in any state, or one that does not exist."""
        self.world.ask(pick, AddPartitions(self.any_sequence(pick), self.world.registrations(data)))

    @rule(pick=PICK, read=SUBSCRIPTIONS)
    def add_subscriptions(self, pick: int, read: tuple[SubscriptionId, ...]):
        """G: to a transaction in any state, or one that does not exist."""
        self.world.ask(pick, AddSubscriptions(self.any_sequence(pick), read))

    @rule(pick=PICK, where=st.sampled_from(PARTITIONS))
    def write(self, pick: int, where: TopicPartition):
        """C2: a client writes where its registration was acknowledged, others anywhere."""
        for held in list(self.world.records.values())[: pick % 4]:
            if where in held:
                held[where].append(self.world.ends[where])
                self.world.ends[where] += 1
        self.world.ends[where] += pick % 2

    @rule(pick=PICK, wait_visible=st.booleans(), used=st.none() | SUBSCRIPTIONS)
    def commit(self, pick: int, *, wait_visible: bool, used: tuple[SubscriptionId, ...] | None):
        """C6, C9: with what was delivered and acknowledged in; the client writes no more."""
        sequence = self.any_sequence(pick)
        written = self.world.delivered(sequence)
        self.world.ask(pick, End(sequence, True, written, wait_visible, used))

    @rule(
        pick=PICK, where=st.sampled_from(PARTITIONS), count=st.integers(0, 3), twice=st.booleans()
    )
    def commit_what_cannot_be(self, pick: int, where: TopicPartition, count: int, *, twice: bool):
        """C6: counts that do not fit, or a partition named twice."""
        end_offset = self.world.ends[where]
        one = Written(where, Offset(end_offset), EndOffset(end_offset + 2), count)
        self.world.ask(pick, End(self.any_sequence(pick), True, (one,) * (1 + twice), False))

    @rule(pick=PICK, wait_visible=st.booleans(), used=st.none() | SUBSCRIPTIONS)
    def abort(self, pick: int, *, wait_visible: bool, used: tuple[SubscriptionId, ...] | None):
        """C3: whatever was written."""
        self.world.ask(pick, End(self.any_sequence(pick), False, (), wait_visible, used))

    @rule(pick=PICK)
    def abort_as_operator(self, pick: int):
        """C11: of any client; clients themselves change their own transactions only."""
        self.world.ask(pick, Abort(self.any_sequence(pick)))

    @rule(
        pick=PICK,
        used=st.none() | SUBSCRIPTIONS,
        secret=st.sampled_from(SECRETS),
        decider=st.sampled_from(["", "db"]),
    )
    def prepare(
        self, pick: int, used: tuple[SubscriptionId, ...] | None, secret: bytes, decider: str
    ):
        """L1: with what was delivered, once more with the same or with other content."""
        sequence = self.any_sequence(pick)
        written = self.world.delivered(sequence)
        fate = self.world.judge.fates[sequence : sequence + 1]
        if fate and fate[0].prepared is not None and pick % 2:
            self.world.ask(pick, fate[0].prepared)
        else:
            self.world.ask(pick, Prepare(sequence, written, used, hash_of(secret), decider))

    @rule(
        pick=PICK,
        committed=st.booleans(),
        secret=st.sampled_from(SECRETS),
        wait_visible=st.booleans(),
    )
    def end_prepared(self, pick: int, *, committed: bool, secret: bytes, wait_visible: bool):
        """L2, L3: any client, with a secret that may be a wrong one, once or again or otherwise."""
        sequence = self.any_sequence(pick)
        self.world.ask(pick // 2, EndPrepared(sequence, committed, secret, wait_visible))

    @rule(pick=PICK, committed=st.booleans())
    def decide_as_operator(self, pick: int, *, committed: bool):
        """L3: without a secret, for a reason."""
        self.world.ask(pick, Decide(self.any_sequence(pick), committed, "the row stands"))

    @rule(picks=st.lists(PICK, min_size=1, max_size=3))
    def release(self, picks: list[int]):
        """C9: some of them open, or released already, some ended otherwise, or never opened."""
        sequences = tuple(map(self.any_sequence, picks))
        for sequence in sequences:
            self.world.records.pop(sequence, None)
        self.world.ask(picks[0], Release(sequences))

    @rule(pick=PICK, everything=st.booleans())
    def inquire(self, pick: int, *, everything: bool):
        """C1: a question that changes nothing."""
        body = ListTransactions() if everything else Describe(self.any_sequence(pick))
        self.world.ask(pick, body)

    @rule(pick=PICK)
    def probe(self, pick: int):
        """E1: a snapshot writer asks which transactions may still write."""
        self.world.ask(pick, WriteBarrier(0, Probe(b"writer", 1)))

    # -- what the path does

    @precondition(lambda self: self.world.requests)
    @rule(pick=PICK, fate=st.sampled_from(["arrives", "arrives twice", "is lost"]))
    def pass_request(self, pick: int, fate: str):
        """In any order; the client repeats what is lost."""
        requests = self.world.requests
        at = pick % len(requests)
        _, request = requests[at] if fate == "arrives twice" else requests.pop(at)
        if fate != "is lost":
            self.world.arrive(request)

    @precondition(lambda self: self.world.responses)
    @rule(pick=PICK, fate=st.sampled_from(["arrives", "arrives twice", "is lost"]))
    def pass_response(self, pick: int, fate: str):
        """In any order; the client asks again for what is lost."""
        responses = self.world.responses
        at = pick % len(responses)
        response = responses[at] if fate == "arrives twice" else responses.pop(at)
        if fate != "is lost":
            self.world.answer(*response)

    @precondition(lambda self: self.world.sent)
    @rule(pick=PICK)
    def repeat_request(self, pick: int):
        """A copy of what may have been answered and acknowledged long ago."""
        self.world.arrive(self.world.sent[pick % len(self.world.sent)][1])

    @rule()
    def let_all_arrive(self):
        """For once no request is lost; the log takes its time."""
        self.world.arrive_calmly()

    @rule()
    def let_all_talk(self):
        """For once nothing is lost between clients and the log."""
        self.world.talk_calmly()

    # -- what owners do

    @precondition(lambda self: self.world.owner.queue)
    @rule(count=st.integers(1, 5))
    def land_appends(self, count: int):
        """The oldest appends of the owner are effective."""
        self.world.land(count)

    @precondition(lambda self: self.world.owner.queue)
    @rule()
    def lose_append(self):
        """B5: the oldest append will never be effective."""
        self.world.fail_append()

    @rule(pick=PICK, count=st.integers(1, 4))
    def read_back(self, pick: int, count: int):
        """The owner, or a zombie up to its fence, reads the next entry."""
        self.world.read(self.world.processes[pick % len(self.world.processes)], count)

    @rule()
    def tick(self):
        """C1b, C7: every clock says so."""
        for client in self.world.clients:
            self.world.tick_client(client)
        for owner in self.world.processes:
            self.world.tick_owner(owner)

    @rule(count=st.integers(0, 5), ahead_ms=st.sampled_from([-1500, 0, 1500]))
    def take_over(self, count: int, ahead_ms: int):
        """B1: another process fences the owner, whose last appends just land or never do."""
        self.world.land(count)
        self.world.replace_owner(ahead_ms)

    # -- what the world does

    @rule()
    def let_all_be_driven(self):
        """For once nothing is lost between the log and the markers."""
        self.world.drive_calmly()

    @precondition(lambda self: self.world.marker_flights)
    @rule(pick=PICK, lands=st.booleans(), fails=st.booleans())
    def deliver_marker(self, pick: int, *, lands: bool, fails: bool):
        """A marker lands or not; a failed one may have landed (A5)."""
        self.world.marker_done(pick, lands=lands or not fails, fails=fails)

    @precondition(lambda self: self.world.end_reads)
    @rule(pick=PICK, fails=st.booleans())
    def read_ends(self, pick: int, *, fails: bool):
        """C3: the end offsets as they are now."""
        self.world.ends_done(pick, fails=fails)

    @precondition(lambda self: self.world.trims)
    @rule(pick=PICK, lands=st.booleans(), fails=st.booleans())
    def trim(self, pick: int, *, lands: bool, fails: bool):
        """C8: an owner's trim is done or not, now or long after it was replaced."""
        self.world.trim_done(pick, lands=lands or not fails, fails=fails)

    @precondition(lambda self: self.readable_starts())
    @rule(pick=PICK)
    def trim_anywhere(self, pick: int):
        """C8: any legal offset gives the state of the whole log."""
        starts = self.readable_starts()
        self.world.trim(starts[pick % len(starts)])

    @rule(elapsed_ms=st.sampled_from([1, 100, 600, 1000, 3000, 30_000, HOUR_MS]))
    def pass_time(self, elapsed_ms: int):
        """Time passes; copies of requests leave the path in the end."""
        self.world.wait(elapsed_ms)

    # -- what must hold

    @invariant()
    def keeps_what_it_acknowledged(self):
        """P5: each acknowledged end is in the log, and no client got another answer."""
        for sequence, committed in self.world.outcomes.items():
            assert bool(self.world.judge.fates[sequence].committed) is committed

    @invariant()
    def opens_each_sequence_for_one_request(self):
        """C0: no two requests share a sequence, and none has two."""
        opened = [
            sequence
            for answer in self.world.judge.answers.values()
            if isinstance(answer, Opened)
            for sequence in range(answer.first_sequence, sum(answer))
        ]
        assert sorted(opened) == list(range(len(self.world.judge.fates)))

    @invariant()
    def replays_to_the_same_state(self):
        """P5: an owner that has read everything holds what a fresh reader holds."""
        if self.world.owner.position == len(self.world.log):
            held = self.world.owner.machine.state
            assert state_of(held) == state_of(self.world.judge.state)

    def readable_starts(self) -> list[int]:
        """Legal log starts up to which the owner has read."""
        read = self.world.log[: self.world.owner.position]
        last = read[-1].offset if read else -1
        return [one for one in self.world.legal_starts() if one <= last]

    def any_sequence(self, pick: int) -> int:
        """One that has not ended, mostly; else any, or the next one."""
        alive = list(self.world.judge.state.transactions)
        if alive and pick % 4:
            return alive[pick % len(alive)]
        return pick % (len(self.world.judge.fates) + 1)

    def teardown(self):
        """C4, C7: when faults stop and time passes, everything ends and every marker is there.

        L1: what is prepared waits, and ends when it is decided.
        """
        pending = [(one, n) for one in self.world.clients for n in one.asked if n not in one.ended]
        until_ms = self.world.now_ms + ASK_TIMEOUT_MS
        decided_from_ms = self.world.now_ms + ASK_TIMEOUT_MS // 2
        while self.world.now_ms <= until_ms:
            if self.world.now_ms >= decided_from_ms:
                self.decide_what_is_prepared()
            self.world.calm_round()
        assert all(number in client.ended for client, number in pending)
        self.the_log_is_trimmed()
        assert not self.world.judge.state.transactions
        for sequence in range(len(self.world.judge.fates)):
            assert not self.world.judge.missing_markers(sequence)
        self.every_client_is_served()

    def decide_what_is_prepared(self):
        """L3: an operator decides what nobody else has decided."""
        for sequence, txn in self.world.judge.state.transactions.items():
            if txn.state is TxnState.PREPARED:
                self.world.ask(sequence, Decide(sequence, sequence % 2 == 0, "at the end"))

    def the_log_is_trimmed(self):
        """C8: within 5 s after the last change the log holds its base, and no-ops behind it."""
        for _ in range(16):  # silent clients may be forgotten just now
            if self.holds_its_base_alone():
                break
            self.world.calm_round()
        assert self.holds_its_base_alone()

    def holds_its_base_alone(self) -> bool:
        """Whether the first entry ends with a base, and nothing but no-ops follows."""
        kept = [one for one in self.world.log if one.offset >= self.world.start]
        last = max(at for at, one in enumerate(kept) if one.offset == self.world.start)
        bases = [isinstance(one.record.body, Base) for one in kept]
        noops = [isinstance(one.record.body, Noop) for one in kept]
        return any(bases[: last + 1]) and all(noops[last + 1 :])

    def every_client_is_served(self):
        """C1b: including a client that gave up, or was forgotten and got `unknown` once."""
        for pick, client in enumerate(self.world.clients):
            for _ in range(2):
                self.world.ask(pick, Open(500, 1, ()))
                self.world.calm_round()
            assert isinstance(client.ended[len(client.asked)], Opened)


Coordinated.TestCase.settings = settings(max_examples=examples(400), stateful_step_count=60)
TestCoordinator = Coordinated.TestCase
