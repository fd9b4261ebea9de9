"""Codec of a coordinator's whole state, which a base holds.

*Source*: docs/protocols C8. A state may be large, so it is encoded item by item, and the caller can
yield to the event loop in between: the joined bytes of messages join their repeated fields.
"""

from collections.abc import Iterator

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.coordinator.requests import (
    aborts_of,
    aborts_pb,
    answer_of,
    registered_of,
    registered_pb,
    response_pb,
    subscription_of,
    subscription_pb,
    written_of,
    written_pb,
)
from stilltide.schemas.coordinator.transactions import (
    BaseClient,
    BaseOutcomes,
    BaseState,
    BaseTransaction,
    Response,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.v1 import txn_log_pb2 as pb

_STATES = {
    "OPEN": pb.TRANSACTION_STATE_OPEN,
    "COMMITTING": pb.TRANSACTION_STATE_COMMITTING,
    "ABORTING": pb.TRANSACTION_STATE_ABORTING,
}
_STATE_NAMES = {number: name for name, number in _STATES.items()}


def encode_state(state: BaseState) -> Iterator[bytes]:
    """The bytes of a state in parts, which the caller joins; one part costs microseconds."""
    yield pb.BaseState(next_sequence=state.next_sequence).SerializeToString()
    for txn in state.transactions:
        yield pb.BaseState(transactions=(_transaction_pb(txn),)).SerializeToString()
    for client in state.clients:
        yield pb.BaseState(clients=(_client_pb(client),)).SerializeToString()
    outcomes = pb.BaseOutcomes(**state.outcomes._asdict())
    yield pb.BaseState(outcomes=outcomes).SerializeToString()
    if state.aborts:
        yield pb.BaseState(aborts=aborts_pb(state.aborts)).SerializeToString()


def decode_state(data: bytes) -> BaseState:
    """The state in the joined bytes of a base's pieces; raises `DecodeError` for other bytes."""
    try:
        message = pb.BaseState.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError("not a coordinator's state", detail=str(error)) from error
    if not message.HasField("outcomes"):  # nothing may be guessed in their place (C12)
        raise DecodeError("a coordinator's state without outcomes")
    return BaseState(
        message.next_sequence,
        tuple(map(_transaction, message.transactions)),
        tuple(map(_client, message.clients)),
        BaseOutcomes(message.outcomes.known_from, message.outcomes.committed),
        aborts_of(message.aborts),
    )


def _transaction_pb(txn: BaseTransaction) -> pb.BaseTransaction:
    return pb.BaseTransaction(
        sequence=txn.sequence,
        state=_STATES[txn.state],
        opened_at_ms=txn.opened_at_ms,
        timeout_ms=txn.timeout_ms,
        partitions=map(registered_pb, txn.partitions),
        subscriptions=map(subscription_pb, txn.subscriptions),
        written=map(written_pb, txn.written),
        client_key=txn.client_key,
        client_name=txn.client_name,
    )


def _transaction(one: pb.BaseTransaction) -> BaseTransaction:
    if one.state not in _STATE_NAMES:
        raise DecodeError(
            f"transaction {one.sequence} is in state {one.state}, which this program does not know",
            hint="a newer Stilltide wrote it: upgrade this one",
        )
    return BaseTransaction(
        one.sequence,
        _STATE_NAMES[one.state],
        one.opened_at_ms,
        one.timeout_ms,
        tuple(map(registered_of, one.partitions)),
        tuple(map(subscription_of, one.subscriptions)),
        tuple(map(written_of, one.written)),
        one.client_key,
        one.client_name,
    )


def _client_pb(client: BaseClient) -> pb.BaseClient:
    return pb.BaseClient(
        client_key=client.client_key,
        last_seen_ms=client.last_seen_ms,
        acked_through=client.acked_through,
        unknown_through=client.unknown_through,
        answers=[response_pb(Response(number, 0, answer)) for number, answer in client.answers],
    )


def _client(one: pb.BaseClient) -> BaseClient:
    return BaseClient(
        one.client_key,
        one.last_seen_ms,
        one.acked_through,
        one.unknown_through,
        tuple((answer.number, answer_of(answer)) for answer in one.answers),
    )
