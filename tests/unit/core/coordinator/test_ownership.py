"""C11: a transaction belongs to the client that opened it, and operators have their own request."""

import pytest

from stilltide.pipeline.core.coordinator.base import install, state_of
from stilltide.pipeline.core.coordinator.state import CoordinatorState, TxnState
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Answer,
    Change,
    Description,
    End,
    Open,
    Opened,
    Registered,
    Release,
    TxnLogRecord,
)
from stilltide.schemas.coordinator.txn_log import decode_state, encode_state
from stilltide.schemas.service.envelopes import Done, RefusalCode, Refused, Request, client_key
from stilltide.schemas.values import EndOffset, SubscriptionId, TopicPartition

P = TopicPartition("orders", 0)
OPEN = Open(5000, 1, (Registered(P, EndOffset(0), bytes(16)),), (), "billing")
OWNER, OTHER = b"owner-0123456789", b"other-0123456789"


def asked(state: CoordinatorState, client: bytes, number: int, body: Change) -> Answer | None:
    """The answer to a request in the log."""
    return state.apply(TxnLogRecord(Request(client, number, 0, 0, body), 1000))


@pytest.fixture
def state() -> CoordinatorState:
    """A state with transaction 0 of the owner."""
    made = CoordinatorState()
    assert asked(made, OWNER, 1, OPEN) == Opened(0, 1)
    return made


@pytest.mark.parametrize(
    "body",
    [
        End(0, True, (), False),
        End(0, False, (), False),
        AddPartitions(0, ()),
        AddSubscriptions(0, (SubscriptionId(P, "g"),)),
        Release((0,)),
    ],
)
def test_c11_another_client_changes_nothing(state: CoordinatorState, body: Change):
    """C11: whatever another client asks, the transaction is open as before."""
    before = state_of(state).transactions
    answer = asked(state, OTHER, 1, body)
    assert isinstance(answer, Refused)
    assert answer.code is RefusalCode.NOT_OWNER
    assert state_of(state).transactions == before


def test_c11_an_operator_aborts(state: CoordinatorState):
    """C11: by a request of its own; the owner's commit is refused then."""
    assert asked(state, OTHER, 1, Abort(0)) == Done()
    assert state.transactions[0].state is TxnState.ABORTING
    assert isinstance(asked(state, OWNER, 2, End(0, True, (), False)), Refused)


def test_c11_an_operator_aborts_no_commit(state: CoordinatorState):
    """C11: what is committing commits."""
    assert asked(state, OWNER, 2, End(0, True, (), False)) == Done()
    assert isinstance(asked(state, OTHER, 1, Abort(0)), Refused)


def test_c11_a_base_keeps_owners(state: CoordinatorState):
    """C8, C11: the owner is known after the request that opened the transaction was trimmed."""
    other = CoordinatorState()
    install(decode_state(b"".join(encode_state(state_of(state)))), other)
    answer = asked(other, OTHER, 1, End(0, True, (), False))
    assert isinstance(answer, Refused)
    assert asked(other, OWNER, 2, End(0, True, (), False)) == Done()


def test_c15_a_description_names_the_client_by_its_hash(state: CoordinatorState):
    """C15: name and hash; the id itself is nowhere."""
    shown = state.describe(0, client_key(OWNER))
    assert isinstance(shown, Description)
    assert (shown.client_name, shown.client_key) == ("billing", client_key(OWNER))
    assert OWNER not in b"".join(encode_state(state_of(state)))
    hidden = state.describe(0, client_key(OTHER))
    assert isinstance(hidden, Refused)
    assert hidden.code is RefusalCode.NOT_OWNER
