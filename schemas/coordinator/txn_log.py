"""Codec of txn-log records.

*Source*: protocols.md A, B1, C. A client's request is spliced into its record as it arrived: the
owner validates it in log order (C0) and never builds it anew.
"""

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.bases import Base
from stilltide.schemas.coordinator.requests import request_of
from stilltide.schemas.coordinator.transactions import (
    Ended,
    Fence,
    ForgetClients,
    LogBody,
    Noop,
    Request,
    TimedOut,
    TxnLogRecord,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.framing import request_field
from stilltide.schemas.v1 import txn_log_pb2 as pb
from stilltide.schemas.values import EndOffset

OwnBody = Fence | Noop | TimedOut | Ended | ForgetClients | Base
"""What an owner appends of its own accord."""


def encode_own(body: OwnBody, at_ms: int) -> bytes:
    """Bytes of a record that the owner makes itself."""
    message = pb.TxnLogRecord(at_ms=at_ms)
    match body:
        case Fence(nonce):
            message.fence.nonce = nonce
        case Noop():
            message.noop.SetInParent()
        case TimedOut(sequence):
            message.timed_out.sequence = sequence
        case Ended(sequence):
            message.ended.sequence = sequence
        case ForgetClients(client_ids):
            message.forget_clients.client_ids.extend(client_ids)
        case Base(as_of, piece_index, piece_count, state):
            message.base.as_of = as_of
            message.base.piece_index = piece_index
            message.base.piece_count = piece_count
            message.base.state = state
    return message.SerializeToString()


def decode_request(data: bytes) -> Request:
    """One request as its log record will hold it; raises `DecodeError` when it is none."""
    try:
        return request_of(pb.TxnLogRecord.FromString(request_field(data)).request)
    except ProtobufDecodeError as error:
        raise DecodeError("not a request to a coordinator", detail=str(error)) from error


def decode(data: bytes) -> TxnLogRecord:
    """One record; raises `DecodeError` when it is none, or of a kind this program lacks."""
    try:
        message = pb.TxnLogRecord.FromString(data)
    except ProtobufDecodeError as error:
        raise DecodeError("not a record of txn-log", detail=str(error)) from error
    return TxnLogRecord(_body_of(message), message.at_ms)


def _body_of(message: pb.TxnLogRecord) -> LogBody:  # noqa: PLR0911 - one for each kind
    match message.WhichOneof("body"):
        case "request":
            return request_of(message.request)
        case "noop":
            return Noop()
        case "ended":
            return Ended(message.ended.sequence)
        case "timed_out":
            return TimedOut(message.timed_out.sequence)
        case "fence":
            return Fence(message.fence.nonce)
        case "forget_clients":
            return ForgetClients(tuple(message.forget_clients.client_ids))
        case "base":
            return _base_of(message.base)
        case _:
            raise DecodeError(
                "a txn-log record that this program does not know",
                hint="a newer Stilltide wrote it: upgrade this one",
            )


def _base_of(message: pb.Base) -> Base:
    if message.piece_index >= message.piece_count:
        raise DecodeError(
            f"piece {message.piece_index} of a base of {message.piece_count} pieces",
        )
    return Base(EndOffset(message.as_of), message.piece_index, message.piece_count, message.state)
