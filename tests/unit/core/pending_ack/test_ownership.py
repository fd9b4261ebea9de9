"""C11, C15: who acknowledges for a member, and in whose transactions."""

from stilltide.pipeline.core.pending_ack.state import PendingAckState
from stilltide.schemas.pending_ack.acknowledgements import (
    AckAnswer,
    AckBody,
    Acknowledge,
    AckQuestion,
    Acks,
    Attach,
    CursorMoved,
    Settle,
)
from stilltide.schemas.pending_ack.codec import decode_state, encode_state
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request, client_key
from stilltide.schemas.values import EndOffset, Offset, Range, SubscriptionId, TopicPartition, TxnId

READ = SubscriptionId(TopicPartition("orders", 0), "billing")
MEMBER = bytes(range(16))
CLIENT, OTHER = b"client-012345678", b"other--012345678"
OPENER, STRANGER = b"opener-012345678", b"stranger-0123456"
X = TxnId(0, 7)


def asked(state: PendingAckState, client: bytes, body: AckBody) -> AckAnswer:
    """The answer to a request in the log."""
    return state.apply(Request(client, 1, 0, 0, AckQuestion(READ, body)), 1000)


def attached() -> PendingAckState:
    """A state in which the client has attached the member."""
    state = PendingAckState()
    assert isinstance(asked(state, CLIENT, Attach(MEMBER, EndOffset(0), (), "m", "app")), Acks)
    return state


def acknowledging(*offsets: int, by: bytes) -> Acknowledge:
    """An acknowledgement in X that names this client as the one that has opened X."""
    return Acknowledge(X, MEMBER, tuple(map(Offset, offsets)), None, by)


def test_c15_another_client_does_not_speak_for_the_member():
    """C15: it knows the member's id, which is in answers, and not the client's."""
    state = attached()
    for body in (acknowledging(1, by=OPENER), CursorMoved(MEMBER, EndOffset(9), ())):
        answer = asked(state, OTHER, body)
        assert isinstance(answer, Refused)
        assert answer.code is RefusalCode.NOT_ATTACHED
    refused = asked(state, OTHER, Attach(MEMBER, EndOffset(0), ()))
    assert isinstance(refused, Refused)
    assert isinstance(state.acks_for(READ, OTHER), Refused)
    assert isinstance(state.acks_for(READ, CLIENT), Acks)
    assert asked(state, CLIENT, acknowledging(1, by=OPENER)) == Done()


def test_c11_only_the_openers_acknowledgements_count():
    """C11: those that name another client are deliverable again when the transaction commits."""
    state = attached()
    assert asked(state, CLIENT, acknowledging(1, by=STRANGER)) == Done()
    asked(state, b"worker-012345678", Settle(X, True, 0, client_key(OPENER)))
    assert state.acks(READ).acknowledged == ()
    assert state.acks(READ).pending == ()


def test_c11_the_openers_acknowledgements_count():
    """C11: a commit acknowledges them, also after the state was written to a base and read."""
    state = attached()
    assert asked(state, CLIENT, acknowledging(1, 2, by=OPENER)) == Done()
    state = PendingAckState.from_base(decode_state(b"".join(encode_state(state.base()))))
    refused = asked(state, CLIENT, acknowledging(3, by=STRANGER))
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.NOT_OWNER
    asked(state, b"worker-012345678", Settle(X, True, 0, client_key(OPENER)))
    assert state.acks(READ).acknowledged == (Range(Offset(1), EndOffset(3)),)
