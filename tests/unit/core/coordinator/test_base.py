"""A coordinator's state in a base, and what a trimmed log means (C8)."""

from stilltide.pipeline.core.buffered_log.bases import Trim
from stilltide.pipeline.core.coordinator.base import install, item_count, state_of
from stilltide.pipeline.core.coordinator.machine import Coordinator, WriteBase
from stilltide.pipeline.core.coordinator.state import FORGET_AFTER_MS, CoordinatorState
from stilltide.schemas.coordinator.transactions import (
    AddPartitions,
    AddSubscriptions,
    Change,
    End,
    Ended,
    ForgetClients,
    LogBody,
    Open,
    Opened,
    Registered,
    Release,
    TimedOut,
    TxnLogRecord,
    Written,
)
from stilltide.schemas.coordinator.txn_log import encode_state
from stilltide.schemas.log_frames import Noop, pieces
from stilltide.schemas.service.envelopes import Request, client_key
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition

P = TopicPartition("orders", 0)
Q = TopicPartition("orders", 1)
OPEN = Open(5000, 2, (Registered(Q, EndOffset(7), b"q"), Registered(P, EndOffset(100), b"p")))
NOW_MS = 1_000_000


def request(number: int, body: Change, client: bytes = b"app") -> Request:
    """A request of a client that acknowledges nothing."""
    return Request(client, number, 0, 0, body)


def state_after(*bodies: LogBody) -> CoordinatorState:
    """The state after these records."""
    state = CoordinatorState()
    for body in bodies:
        state.apply(TxnLogRecord(body, NOW_MS))
    return state


def serving(*bodies: LogBody) -> Coordinator:
    """An owner with the fence at 0 that has read an entry for each of these."""
    owner = Coordinator(3)
    owner.serve(Offset(0), NOW_MS)
    for offset, body in enumerate(bodies, 1):
        owner.applied(Offset(offset), [TxnLogRecord(body, NOW_MS)], own=False, now_ms=NOW_MS)
    return owner


def test_an_installed_base_is_the_state_it_was_made_of():
    """C8: every field of what is open and remembered, in the same order."""
    state = state_after(
        request(1, OPEN, b"z"),
        request(1, OPEN, b"a"),
        request(2, AddSubscriptions(1, (SubscriptionId(P, "g"),))),
        request(3, End(0, True, (Written(P, Offset(101), EndOffset(104), 2),), False)),
        request(4, AddPartitions(9, ())),
        TimedOut(3),
    )
    state.answer_count -= state.clients[client_key(b"z")].acked(1)
    state.clients[client_key(b"a")].unknown_through = 5
    other = state_after(request(1, OPEN))
    install(state_of(state), other)
    assert (other.next_sequence, other.transactions, other.clients) == (
        state.next_sequence,
        state.transactions,
        state.clients,
    )
    assert state_of(other) == state_of(state)
    assert [*other.transactions[0].partitions] == [Q, P]
    assert item_count(other) == 4 + 3 + 4


def test_a_base_is_a_copy():
    """C8: what happens while it is encoded is not in it."""
    state = state_after(request(1, OPEN))
    before = state_of(state)
    state.apply(TxnLogRecord(request(2, AddPartitions(0, (Registered(P, EndOffset(1), b""),))), 0))
    state.apply(TxnLogRecord(request(3, Release((1,))), 0))
    assert before == state_of(state_after(request(1, OPEN)))


def test_what_belongs_to_open_transactions_is_live():
    """C8: requests until their transactions end or are released; refusals and no-ops never."""
    owner = serving(
        request(1, OPEN),
        request(2, AddPartitions(0, ())),
        request(3, AddPartitions(9, ())),
        Noop(),
        request(4, End(0, False, (), False)),
        TimedOut(1),
    )
    liveness = owner.bases.liveness
    assert liveness.live_entries() == {1: 1, 2: 1, 5: 1}
    assert liveness.dead_count == 3
    owner.applied(Offset(7), [TxnLogRecord(Ended(0), NOW_MS)], own=False, now_ms=NOW_MS)
    assert liveness.live_entries() == {1: 1}
    owner.applied(
        Offset(8),
        [TxnLogRecord(it, NOW_MS) for it in (request(5, OPEN), request(6, Release((2, 3))))],
        own=False,
        now_ms=NOW_MS,
    )
    assert liveness.live_entries() == {1: 1}


def test_an_idle_owner_makes_a_base_and_trims():
    """C8: an effect to write the state, and, once that is read back, one to trim the log."""
    owner = serving(request(1, OPEN), request(2, Release((0, 1))))
    deadline_ms = owner.deadline_ms
    assert deadline_ms == NOW_MS + 1000
    (effect,) = owner.tick(deadline_ms)
    assert effect == WriteBase(EndOffset(3), state_of(owner.state))
    (piece,) = pieces(EndOffset(3), b"")
    applied = owner.applied(Offset(3), [TxnLogRecord(piece, 0)], own=True, now_ms=deadline_ms)
    assert applied == [Trim(Offset(3))]
    owner.trimmed(Offset(3))
    assert owner.tick(deadline_ms + 50_000) == []


def test_what_was_forgotten_does_not_come_to_life():
    """C8: below a base's offset nothing is applied on top of it, wherever the log begins.

    The client was forgotten since, so its request would open transactions once more.
    """
    later_ms = NOW_MS + FORGET_AFTER_MS
    history = [
        TxnLogRecord(request(1, OPEN), NOW_MS),
        TxnLogRecord(request(2, Release((0, 1))), NOW_MS),
        TxnLogRecord(ForgetClients((client_key(b"app"),)), later_ms),
    ]
    whole = CoordinatorState()
    for record in history:
        whole.apply(record)
    (piece,) = pieces(EndOffset(4), b"".join(encode_state(state_of(whole))))
    history.append(TxnLogRecord(piece, later_ms))
    for start in range(1, 5):
        owner = Coordinator(3, Offset(start))
        for offset, record in list(enumerate(history, 1))[start - 1 :]:
            assert owner.applied(Offset(offset), [record], own=False, now_ms=later_ms) == []
        assert state_of(owner.state) == state_of(whole)
        owner.serve(Offset(5), later_ms)
        opened = TxnLogRecord(request(1, OPEN), later_ms)
        owner.applied(Offset(6), [opened], own=True, now_ms=later_ms)
        assert owner.state.clients[client_key(b"app")].answers == {1: Opened(2, 2)}
