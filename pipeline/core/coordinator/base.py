"""Conversion of a coordinator's state to the content of a base, and back.

*Source*: docs/protocols C8, L1.
*Invariants*: an installed state equals the copied one, including the order of transactions,
partitions, clients and answers, so that the same further records have the same effects.
"""

from collections.abc import Iterable

from stilltide.pipeline.core.coordinator.state import (
    ClientMemory,
    CoordinatorState,
    OngoingTransaction,
    TxnState,
)
from stilltide.schemas.coordinator.transactions import (
    Abort,
    AddPartitions,
    AddSubscriptions,
    Answer,
    BaseClient,
    BaseState,
    BaseTransaction,
    Decide,
    End,
    Opened,
    Prepare,
    TxnLogRecord,
    TxnRequest,
)
from stilltide.schemas.log_frames import Base
from stilltide.schemas.service.envelopes import Refused

_OF_ONE = (AddPartitions, AddSubscriptions, End, Abort, Prepare, Decide)
"""Requests about one transaction."""

ITEM_BYTES = 64
"""Bytes of a small item of a base; so many bytes of outcomes count as one."""


def state_of(state: CoordinatorState) -> BaseState:
    """A copy of the whole state; costs microseconds for each transaction and answer."""
    return BaseState(
        state.next_sequence,
        tuple(map(_transaction_of, state.transactions.values())),
        tuple(_client_of(key, client) for key, client in state.clients.items()),
        state.outcomes.content(),
        state.causes.content(),
        state.decisions,
    )


def item_count(state: CoordinatorState) -> int:
    """How many transactions, clients and answers a base would hold; outcomes count by size."""
    items = len(state.transactions) + len(state.clients) + state.answer_count
    return items + state.outcomes.size_bytes // ITEM_BYTES


def install(base: BaseState, state: CoordinatorState) -> None:
    """Replaces the content of `state` by that of the base."""
    state.replace(
        base.next_sequence,
        map(_transaction, base.transactions),
        {client.client_key: _client(client) for client in base.clients},
        base.outcomes,
        base.aborts,
        decisions=base.decisions,
    )


def base_of(record: TxnLogRecord) -> Base | None:
    """The record's body if the record is a piece of a base, else None."""
    return record.body if isinstance(record.body, Base) else None


def live_keys(request: TxnRequest, answer: Answer | None, state: CoordinatorState) -> Iterable[int]:
    """Sequences of the open transactions whose state depends on an applied request."""
    ongoing = state.transactions
    if answer is None or isinstance(answer, Refused):
        return ()
    body = request.body
    if isinstance(answer, Opened):
        first, count = answer
        if count == 1:
            return (first,) if first in ongoing else ()
        return [sequence for sequence in range(first, first + count) if sequence in ongoing]
    if isinstance(body, _OF_ONE) and body.sequence in ongoing:
        return (body.sequence,)
    return ()


def _transaction_of(txn: OngoingTransaction) -> BaseTransaction:
    return BaseTransaction(
        txn.sequence,
        txn.state.value,
        txn.opened_at_ms,
        txn.timeout_ms,
        tuple(txn.partitions.values()),
        txn.subscriptions,
        txn.written,
        txn.client_key,
        txn.client_name,
        txn.preparation,
    )


def _transaction(copied: BaseTransaction) -> OngoingTransaction:
    return OngoingTransaction(
        copied.sequence,
        copied.opened_at_ms,
        copied.timeout_ms,
        {registered.data: registered for registered in copied.partitions},
        copied.subscriptions,
        TxnState(copied.state),
        copied.written,
        copied.client_key,
        copied.client_name,
        copied.preparation,
    )


def _client_of(key: bytes, client: ClientMemory) -> BaseClient:
    return BaseClient(
        key,
        client.last_seen_ms,
        client.acked_through,
        client.unknown_through,
        tuple(client.answers.items()),
    )


def _client(copied: BaseClient) -> ClientMemory:
    return ClientMemory(
        copied.last_seen_ms, copied.acked_through, copied.unknown_through, dict(copied.answers)
    )
