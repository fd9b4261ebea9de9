"""L: a prepared transaction is final, waits without time-out, and ends by the first decision."""

import pytest

from stilltide.pipeline.core.coordinator.admission import (
    DECIDED_BY_CHARS_MAX,
    DECIDER_CHARS_MAX,
    REASON_CHARS_MAX,
    without_secret,
    wrong_values,
)
from stilltide.pipeline.core.coordinator.barrier import barrier_of
from stilltide.pipeline.core.coordinator.base import install, state_of
from stilltide.pipeline.core.coordinator.machine import Coordinator, EndParticipants, Propose, Reply
from stilltide.pipeline.core.coordinator.state import (
    DECISIONS_MAX,
    PREPARED_PER_CLIENT_MAX,
    CoordinatorState,
    TxnState,
)
from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AbortCause,
    AddPartitions,
    AddSubscriptions,
    Answer,
    Change,
    Decide,
    Description,
    End,
    Ended,
    EndPrepared,
    Listed,
    ListTransactions,
    Open,
    Opened,
    OperatorDecision,
    Preparation,
    Prepare,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    WriteBarrier,
    Written,
)
from stilltide.schemas.coordinator.txn_log import decode_state, encode_state
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition

P = TopicPartition("orders", 0)
READ, MORE = SubscriptionId(P, "billing"), SubscriptionId(P, "unused")
OPEN = Open(5000, 1, (Registered(P, EndOffset(0), bytes(16)),), (READ, MORE), "billing")
OWNER, OTHER = b"owner-0123456789", b"other-0123456789"
SECRET, WRONG = b"s" * 32, b"w" * 32
WRITTEN = (Written(P, Offset(3), EndOffset(9), 2),)
PREPARE = Prepare(0, WRITTEN, (READ,), hash_of(SECRET), "db")
PREPARED_MS = 1700
BY_OPERATOR = "the database says so"


def by_secret(*, committed: bool, secret: bytes = SECRET) -> Decide:
    """What is logged of a request that shows this secret."""
    return Decide(0, committed, "", hash_of(secret))


def asked(
    state: CoordinatorState, client: bytes, number: int, body: Change, at_ms: int = 1000
) -> Answer | None:
    """The answer to a request in the log."""
    return state.apply(TxnLogRecord(Request(client, number, 0, 0, body), at_ms))


@pytest.fixture
def state() -> CoordinatorState:
    """A state with transaction 0, which its owner has prepared."""
    made = CoordinatorState()
    assert asked(made, OWNER, 1, OPEN) == Opened(0, 1)
    assert asked(made, OWNER, 2, PREPARE, PREPARED_MS) == Done()
    return made


def restored(state: CoordinatorState) -> CoordinatorState:
    """The state that a base of this state gives to the next owner."""
    copy = CoordinatorState()
    install(decode_state(b"".join(encode_state(state_of(state)))), copy)
    return copy


@pytest.mark.parametrize(
    "body",
    [
        End(0, True, WRITTEN, False),
        End(0, False, (), False),
        AddPartitions(0, ()),
        AddSubscriptions(0, (MORE,)),
        Release((0,)),
        Abort(0),
        PREPARE._replace(written=()),
        PREPARE._replace(acknowledged_in=()),
        PREPARE._replace(secret_hash=hash_of(WRONG)),
        PREPARE._replace(decider="another"),
    ],
)
def test_l1_nothing_changes_a_prepared_transaction(state: CoordinatorState, body: Change):
    """L1: registration, end, release, other content: each is refused, and the reason is coded."""
    before = state_of(state).transactions
    answer = asked(state, OWNER, 3, body)
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.PREPARED
    assert "stilltide txn commit|abort --prepared" in answer.reason
    assert state_of(state).transactions == before
    assert restored(state).transactions == state.transactions


@pytest.mark.parametrize("used", [(READ,), (READ, READ), None])
def test_l1_the_same_content_again(
    state: CoordinatorState, used: tuple[SubscriptionId, ...] | None
):
    """L1: a client that asks again is answered alike; when it was prepared stays."""
    assert asked(state, OWNER, 3, PREPARE._replace(acknowledged_in=used), 9999) == Done()
    assert state.transactions[0].preparation == Preparation(PREPARED_MS, hash_of(SECRET), "db")


@pytest.mark.parametrize(
    "body",
    [
        PREPARE._replace(written=(Written(P, Offset(3), EndOffset(4), 2),)),
        PREPARE._replace(acknowledged_in=(SubscriptionId(P, "another"),)),
        PREPARE._replace(sequence=7),
    ],
)
def test_l1_what_could_not_commit_is_not_prepared(body: Prepare):
    """L1, C6: counts that cannot be true are refused, and the transaction stays open."""
    state = CoordinatorState()
    asked(state, OWNER, 1, OPEN)
    assert isinstance(asked(state, OWNER, 2, body), Refused)
    assert state.transactions[0].state is TxnState.OPEN
    assert asked(state, OWNER, 3, End(0, True, WRITTEN, False)) == Done()


def test_l1_the_owner_alone_prepares():
    """C11: another client is refused."""
    state = CoordinatorState()
    asked(state, OWNER, 1, OPEN)
    answer = asked(state, OTHER, 1, PREPARE)
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.NOT_OWNER


def test_l1_a_time_out_changes_nothing_behind_prepare(state: CoordinatorState):
    """L1: a time-out on its way when the transaction was prepared has come too late."""
    state.apply(TxnLogRecord(TimedOut(0), 9000))
    assert state.transactions[0].state is TxnState.PREPARED
    assert asked(state, OTHER, 1, by_secret(committed=True)) == Done()


def test_l1_a_time_out_before_prepare_aborts():
    """L1: what lies first in the log counts; the refusal says what has happened."""
    state = CoordinatorState()
    asked(state, OWNER, 1, OPEN)
    state.apply(TxnLogRecord(TimedOut(0), 9000))
    answer = asked(state, OWNER, 2, PREPARE)
    assert isinstance(answer, Refused)
    assert "aborted at its time-out" in answer.reason


def test_l1_no_time_out_through_a_restart():
    """L1: an owner that takes over a prepared transaction never proposes its time-out."""
    machine = Coordinator(0)
    records = [
        TxnLogRecord(Request(OWNER, number, 0, 0, body), 1000)
        for number, body in ((1, OPEN), (2, PREPARE))
    ]
    machine.applied(Offset(1), records, own=False, now_ms=0)
    assert machine.serve(Offset(2), now_ms=0) == []
    for now_ms in range(0, 3_600_000, 60_000):
        assert not [it for it in machine.tick(now_ms) if isinstance(it, Propose | EndParticipants)]
    assert machine.state.transactions[0].state is TxnState.PREPARED


def test_l1_a_time_out_that_came_too_late_frees_its_place():
    """C16, L1: the bound of time-outs on their way does not count a prepared transaction."""
    machine = Coordinator(0)
    machine.serve(Offset(0), now_ms=0)

    def apply(offset: int, body: object, now_ms: int) -> list[object]:
        record = TxnLogRecord(body, now_ms)  # type: ignore[arg-type]
        return list(machine.applied(Offset(offset), [record], own=True, now_ms=now_ms))

    apply(1, Request(OWNER, 1, 0, 0, OPEN), 0)
    assert Propose(TimedOut(0)) in machine.tick(6000)
    apply(2, Request(OWNER, 2, 0, 0, PREPARE), 6001)
    assert apply(3, TimedOut(0), 6002) == []
    assert machine.state.transactions[0].state is TxnState.PREPARED
    assert machine._timing_out.total == 0


@pytest.mark.parametrize("committed", [True, False])
def test_l2_the_secret_decides(state: CoordinatorState, *, committed: bool):
    """L2: any client that shows the secret ends the transaction, as prepared."""
    assert asked(state, OTHER, 1, by_secret(committed=committed)) == Done()
    txn = state.transactions[0]
    assert txn.state is (TxnState.COMMITTING if committed else TxnState.ABORTING)
    assert txn.written == WRITTEN
    assert txn.subscriptions == (READ,)
    assert state.causes.of(0) is (None if committed else AbortCause.TOKEN)
    assert state.decisions == ()


def test_l2_a_wrong_secret_decides_nothing(state: CoordinatorState):
    """L2: also after the transaction was decided by the right one, and of the owner."""
    for client in (OWNER, OTHER):
        answer = asked(state, client, 5, by_secret(committed=True, secret=WRONG))
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.NOT_OWNER
    assert state.transactions[0].state is TxnState.PREPARED
    asked(state, OTHER, 6, by_secret(committed=True))
    answer = asked(state, OTHER, 7, by_secret(committed=True, secret=WRONG))
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.NOT_OWNER


def test_l2_what_was_not_prepared_has_no_token():
    """L2: an open transaction is not ended by anybody's decision."""
    state = CoordinatorState()
    asked(state, OWNER, 1, OPEN)
    for number, body in enumerate((by_secret(committed=False), Decide(0, False, BY_OPERATOR)), 2):
        answer = asked(state, OTHER, number, body)
        assert answer == Refused("transaction 0 is not prepared: it is OPEN")


def test_l2_the_log_holds_no_secret():
    """L2: what is logged of a request has the hash in the place of the secret."""
    request = Request(OWNER, 3, 1, 2, EndPrepared(0, True, SECRET, True))
    assert isinstance(request.body, EndPrepared)
    logged = without_secret(request, request.body)
    assert logged == request._replace(body=Decide(0, True, "", hash_of(SECRET), True))


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_l3_one_decision(state: CoordinatorState, *, committed: bool, ended: bool):
    """L3: the first stands; the same again is done, the opposite names what stands."""
    assert asked(state, OTHER, 1, by_secret(committed=committed)) == Done()
    if ended:
        state.apply(TxnLogRecord(Ended(0), 2000))
        state = restored(state)
    assert asked(state, OWNER, 3, by_secret(committed=committed)) == Done()
    assert asked(state, OTHER, 2, Decide(0, committed, BY_OPERATOR)) == Done()
    for number, body in enumerate(
        (by_secret(committed=not committed), Decide(0, not committed, BY_OPERATOR)), 3
    ):
        answer = asked(state, OTHER, number, body)
        assert isinstance(answer, Refused)
        assert answer.code is (RefusalCode.COMMITTED if committed else RefusalCode.ABORTED)
    assert state.decisions == ()


def test_l3_a_forgotten_outcome_is_not_guessed():
    """L3, C12: beyond the history of outcomes nobody is told Done, or the opposite."""
    state = CoordinatorState(outcome_history=1)
    asked(state, OWNER, 1, OPEN)
    asked(state, OWNER, 2, PREPARE)
    asked(state, OTHER, 1, by_secret(committed=True))
    state.apply(TxnLogRecord(Ended(0), 2000))
    asked(state, OWNER, 3, OPEN._replace(transaction_count=2))
    for number, committed in enumerate((True, False), 2):
        answer = asked(state, OTHER, number, by_secret(committed=committed))
        assert answer == Refused("transaction 0 has ended, and its outcome is forgotten")
    assert isinstance(asked(state, OTHER, 4, Decide(99, True, BY_OPERATOR)), Refused)


@pytest.mark.parametrize("committed", [True, False])
def test_l3_an_operator_decides(state: CoordinatorState, *, committed: bool):
    """L3: without the secret; the reason, and who decides, stay, through a base too."""
    decide = Decide(0, committed, BY_OPERATOR, decided_by="me@here")
    assert asked(state, OTHER, 1, decide, 2000) == Done()
    state = restored(state)
    assert state.decisions == (OperatorDecision(0, committed, 2000, BY_OPERATOR, "me@here"),)
    assert state.causes.of(0) is (None if committed else AbortCause.OPERATOR)


def test_l3_decisions_of_operators_are_bounded():
    """L3: the last ones are kept."""
    state = CoordinatorState()
    asked(state, OWNER, 1, OPEN._replace(transaction_count=DECISIONS_MAX + 1))
    for sequence in range(DECISIONS_MAX + 1):
        asked(state, OWNER, 2 + sequence, PREPARE._replace(sequence=sequence))
        asked(state, OTHER, 1 + sequence, Decide(sequence, True, BY_OPERATOR))
    assert [it.sequence for it in state.decisions] == list(range(1, DECISIONS_MAX + 1))


def test_l3_a_commit_uses_the_counts_of_prepare():
    """L3: the markers hold what was prepared, and who waits until it is visible is answered."""
    machine = Coordinator(0)
    machine.serve(Offset(0), now_ms=0)
    decide = by_secret(committed=True)._replace(wait_visible=True)
    requests = [
        Request(OWNER, 1, 0, 0, OPEN),
        Request(OWNER, 2, 0, 0, PREPARE),
        Request(OTHER, 1, 0, 0, decide),
    ]
    records = [TxnLogRecord(request, 1000) for request in requests]
    effects = machine.applied(Offset(1), records, own=True, now_ms=1000)
    assert [it.request for it in effects if isinstance(it, Reply)] == requests[:2]
    (end,) = [it for it in effects if isinstance(it, EndParticipants)]
    assert end.committed
    assert [(it.data, it.end_offset, it.record_count) for it in end.markers] == [(P, 9, 2)]
    assert end.subscriptions == (READ,)
    assert machine.participants_ended(0, 2000) == [Reply(requests[2], Done())]


def test_l7_a_client_has_a_bounded_number_of_prepared_transactions():
    """L7: one more is refused with a code, and can be prepared once another one is decided."""
    state = CoordinatorState()
    count = PREPARED_PER_CLIENT_MAX
    asked(state, OWNER, 1, OPEN._replace(transaction_count=count))
    asked(state, OWNER, 2, OPEN)
    for sequence in range(count):
        assert asked(state, OWNER, 3 + sequence, PREPARE._replace(sequence=sequence)) == Done()
    state = restored(state)
    answer = asked(state, OWNER, 3 + count, PREPARE._replace(sequence=count))
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.LIMIT
    asked(state, OTHER, 1, by_secret(committed=False))
    assert asked(state, OWNER, 4 + count, PREPARE._replace(sequence=count)) == Done()


def test_l7_prepared_transactions_count_in_the_bounds(state: CoordinatorState):
    """C16, L7: with what they have registered, until they are decided."""
    (share,) = state.held.values()
    assert (share.transactions, share.registrations, share.prepared) == (1, 2, 1)
    assert restored(state).held == state.held
    asked(state, OTHER, 1, by_secret(committed=True))
    assert state.held == {}
    assert state.registration_count == 2


def test_l7_readers_are_told_of_prepared_transactions(state: CoordinatorState):
    """E1, C7: barriers name them as open, and the low watermark stays."""
    barrier = barrier_of(state, 0, WriteBarrier(0, Probe(b"p", 1)), 1)
    assert [(it.data, it.transaction_count) for it in barrier.open] == [(P, 1)]
    asked(state, OWNER, 3, OPEN)
    assert state.low_watermark == 0


def test_l8_everybody_who_asks_sees_the_state(state: CoordinatorState):
    """L8: describe and list name the state, since when, and the decider."""
    preparation = Preparation(PREPARED_MS, hash_of(SECRET), "db")
    described = state.describe(0, None)
    assert isinstance(described, Description)
    assert (described.state, described.preparation) == ("PREPARED", preparation)
    machine = Coordinator(0)
    install(state_of(state), machine.state)
    listed = machine.asked(Request(OWNER, 9, 0, 0, ListTransactions()), operator=True)
    assert isinstance(listed, Listed)
    assert (listed.prepared_count, listed.open_count) == (1, 0)
    asked(state, OTHER, 1, by_secret(committed=True))
    described = state.describe(0, None)
    assert isinstance(described, Description)
    assert (described.state, described.preparation) == ("COMMITTING", preparation)


@pytest.mark.parametrize(
    "body",
    [
        Decide(0, True),
        Decide(0, True, " "),
        Decide(0, True, "x" * (REASON_CHARS_MAX + 1)),
        Decide(0, True, BY_OPERATOR, hash_of(SECRET)),
        Decide(0, True, BY_OPERATOR, decided_by="x" * (DECIDED_BY_CHARS_MAX + 1)),
        PREPARE._replace(decider="x" * (DECIDER_CHARS_MAX + 1)),
        PREPARE._replace(sequence=2**63),
        EndPrepared(2**63, True, SECRET, False),
        PREPARE._replace(written=(Written(P, Offset(2**63), EndOffset(9), 2),)),
    ],
)
def test_c10_values_that_cannot_be_true(body: Change | EndPrepared):
    """C10, L2: no operator decides without a reason, or by the hash of a secret."""
    assert wrong_values(Request(OWNER, 1, 0, 0, body), body)
