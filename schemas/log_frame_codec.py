"""Codec of the records and figures that txn-log and pending-ack-log have in common.

*Source*: docs/protocols B1, B5, C8. The messages of the two logs, and of the two answers with
figures, have equal fields, so one function serves both.
"""

from typing import Any, Literal, assert_never

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.log_frames import (
    Base,
    Fence,
    FlushFigures,
    LogFigures,
    LogFrame,
    Noop,
)
from stilltide.schemas.v1.pending_ack_pb2 import PendingAckBase, PendingAckLogRecord, StoreStats
from stilltide.schemas.v1.requests_pb2 import CoordinatorStats
from stilltide.schemas.v1.requests_pb2 import FlushFigures as FlushFiguresPb
from stilltide.schemas.v1.txn_log_pb2 import Base as TxnLogBase
from stilltide.schemas.v1.txn_log_pb2 import TxnLogRecord
from stilltide.schemas.values import EndOffset


def put_frame(message: TxnLogRecord | PendingAckLogRecord, frame: LogFrame) -> None:
    """Makes the frame the body of a log record."""
    match frame:
        case Fence(nonce):
            message.fence.nonce = nonce
        case Noop():
            message.noop.SetInParent()
        case Base(as_of, piece_index, piece_count, state):
            message.base.as_of = as_of
            message.base.piece_index = piece_index
            message.base.piece_count = piece_count
            message.base.state = state
        case _:
            assert_never(frame)


def frame_of(
    message: TxnLogRecord | PendingAckLogRecord, kind: Literal["fence", "noop", "base"]
) -> LogFrame:
    """The frame that is the body of a log record; raises `DecodeError` for an impossible base."""
    match kind:
        case "noop":
            return Noop()
        case "fence":
            return Fence(message.fence.nonce)
        case "base":
            return _base_of(message.base)


def _base_of(message: TxnLogBase | PendingAckBase) -> Base:
    if message.piece_index >= message.piece_count:
        raise DecodeError(
            f"piece {message.piece_index} of a base of {message.piece_count} pieces",
        )
    return Base(EndOffset(message.as_of), message.piece_index, message.piece_count, message.state)


def figures_of(message: CoordinatorStats | StoreStats) -> LogFigures:
    """The figures of the log in an answer that also holds other figures."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in LogFigures._fields}
    fields["flushes"] = tuple(
        FlushFigures(*(getattr(one, name) for name in FlushFigures._fields))
        for one in message.flushes
    )
    return LogFigures(**fields)


def figure_fields(log: LogFigures) -> dict[str, Any]:
    """The fields of an answer that hold the figures of the log."""
    return log._asdict() | {"flushes": [FlushFiguresPb(**it._asdict()) for it in log.flushes]}
