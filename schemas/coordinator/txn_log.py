"""Codec of txn-log records.

*Source*: docs/protocols A, B1, C. The bytes of a client's request become part of the log record as
they arrived: the owner validates the request in log order (C0) and never encodes it again.
"""

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.coordinator.requests import arrived_request_of, request_of
from stilltide.schemas.coordinator.transactions import (
    Ended,
    ForgetClients,
    LogBody,
    Request,
    TimedOut,
    TxnLogRecord,
)
from stilltide.schemas.errors import DecodeError, no_bytes
from stilltide.schemas.framing import request_field
from stilltide.schemas.log_frame_codec import frame_of, put_frame
from stilltide.schemas.log_frames import LogFrame
from stilltide.schemas.service.wire_bounds import check_request, shape_of
from stilltide.schemas.v1 import txn_log_pb2 as pb

_SHAPE = shape_of([(5,), (6,), (7, 5), (10,), (11,)])
"""Where a request holds elements: in its body, and in `AcknowledgedIn` of an `End`."""

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


def decode_request(data: bytes) -> Request:
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
