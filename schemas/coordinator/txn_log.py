"""Codec of txn-log records, and of a coordinator's whole state, which a base holds.

*Source*: docs/protocols B1, C0, C8, L8. The bytes of a client's request become part of the log
record as they arrived: the owner validates the request in log order (C0) and never encodes it
again. A state may be large, so it is encoded item by item, and the caller can yield to the event
loop in between: the joined bytes of messages join their repeated fields.
"""

from collections.abc import Iterator

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.coordinator.requests import (
    ABORTS,
    DECISIONS,
    PREPARATION,
    REGISTERED,
    SUBSCRIPTIONS,
    aborts_pb,
    answer_of,
    arrived_request_of,
    request_of,
    response_pb,
    written_of,
    written_pb,
)
from stilltide.schemas.coordinator.transactions import (
    BaseClient,
    BaseOutcomes,
    BaseState,
    BaseTransaction,
    Ended,
    ForgetClients,
    LogBody,
    TimedOut,
    TxnLogRecord,
    TxnRequest,
)
from stilltide.schemas.errors import DecodeError, no_bytes
from stilltide.schemas.framing import check_request, request_field, shape_of
from stilltide.schemas.log_frames import LogFrame, frame_of, put_frame
from stilltide.schemas.messages import FieldRule, Fields, each, from_bytes
from stilltide.schemas.service.envelopes import Response
from stilltide.schemas.v1 import txn_log_pb2 as pb

_SHAPE = shape_of([(5,), (6,), (7, 5), (10,), (11,), (16, 3)])
"""Where a request holds elements: in its body, and in `AcknowledgedIn` of `End` and `Prepare`."""

OwnBody = LogFrame | TimedOut | Ended | ForgetClients
"""Records that an owner appends without a client's request."""


def encode_own(body: OwnBody, at_ms: int) -> bytes:
    """Bytes of a record that the owner makes itself."""
    message = pb.TxnLogRecord(at_ms=at_ms)
    match body:
        case TimedOut(sequence):
            message.timed_out.sequence = sequence
        case Ended(sequence):
            message.ended.sequence = sequence
        case ForgetClients(client_keys):
            message.forget_clients.client_keys.extend(client_keys)
        case _:
            put_frame(message, body)
    return message.SerializeToString()


def decode_request(data: bytes) -> TxnRequest:
    """One request as it arrives, decoded as in a log record; see `arrived_request_of`.

    Raises:
        DecodeError: other bytes, too many bytes or elements (C16), or a request that names no
            client or number.
    """
    check_request(data, _SHAPE)
    try:
        return arrived_request_of(pb.TxnLogRecord.FromString(request_field(data)).request)
    except ProtobufDecodeError as error:
        raise DecodeError("not a request to a coordinator", detail=str(error)) from error


def decode(data: bytes) -> TxnLogRecord:
    """One record; raises `DecodeError` for other bytes, and for an unknown kind of record."""
    if not data:
        raise no_bytes("a record of txn-log")
    try:
        message = pb.TxnLogRecord.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError("not a record of txn-log", detail=str(error)) from error
    return TxnLogRecord(_body_of(message), message.at_ms)


def _body_of(message: pb.TxnLogRecord) -> LogBody:
    match message.WhichOneof("body"):
        case "request":
            return request_of(message.request)
        case "ended":
            return Ended(message.ended.sequence)
        case "timed_out":
            return TimedOut(message.timed_out.sequence)
        case "forget_clients":
            return ForgetClients(tuple(message.forget_clients.client_keys))
        case "fence" | "noop" | "base" as kind:
            return frame_of(message, kind)
        case _:
            raise DecodeError(
                "a txn-log record that this program does not know",
                hint="a newer Stilltide wrote it: upgrade this one",
            )


_STATES = {
    "OPEN": pb.TRANSACTION_STATE_OPEN,
    "COMMITTING": pb.TRANSACTION_STATE_COMMITTING,
    "ABORTING": pb.TRANSACTION_STATE_ABORTING,
    "PREPARED": pb.TRANSACTION_STATE_PREPARED,
}
_STATE_NAMES = {number: name for name, number in _STATES.items()}


_TRANSACTION = Fields(
    BaseTransaction,
    pb.BaseTransaction,
    state=FieldRule(_STATES.__getitem__, _STATE_NAMES.__getitem__),
    partitions=REGISTERED,
    subscriptions=SUBSCRIPTIONS,
    written=each(written_pb, written_of),
    preparation=PREPARATION,
)
_CLIENT = Fields(
    BaseClient,
    pb.BaseClient,
    answers=each(
        lambda numbered: response_pb(Response(numbered[0], 0, numbered[1])),
        lambda response: (response.number, answer_of(response)),
    ),
)
_OUTCOMES = Fields(BaseOutcomes, pb.BaseOutcomes)
_STATE = Fields(
    BaseState,
    pb.BaseState,
    transactions=_TRANSACTION,
    clients=_CLIENT,
    outcomes=_OUTCOMES,
    aborts=ABORTS,
    decisions=DECISIONS,
)


def encode_state(state: BaseState) -> Iterator[bytes]:
    """The bytes of a state in parts, which the caller joins; one part costs microseconds."""
    yield pb.BaseState(next_sequence=state.next_sequence).SerializeToString()
    for txn in state.transactions:
        yield pb.BaseState(transactions=(_TRANSACTION.message(txn),)).SerializeToString()
    for client in state.clients:
        yield pb.BaseState(clients=(_CLIENT.message(client),)).SerializeToString()
    yield pb.BaseState(outcomes=_OUTCOMES.message(state.outcomes)).SerializeToString()
    if state.aborts:
        yield pb.BaseState(aborts=aborts_pb(state.aborts)).SerializeToString()
    if state.decisions:
        decisions = map(DECISIONS.message, state.decisions)
        yield pb.BaseState(decisions=decisions).SerializeToString()


def decode_state(data: bytes) -> BaseState:
    """The state in the joined bytes of a base's pieces; raises `DecodeError` for other bytes."""
    message = from_bytes(pb.BaseState, data, "a coordinator's state")
    if not message.HasField("outcomes"):  # nothing may be guessed in their place (C12)
        raise DecodeError("a coordinator's state without outcomes")
    for txn in message.transactions:
        if txn.state not in _STATE_NAMES:
            unknown = f"in state {txn.state}, which this program does not know"
            raise DecodeError(
                f"transaction {txn.sequence} is {unknown}",
                hint="a newer Stilltide wrote it: upgrade this one",
            )
    return _STATE.value(message)
