"""Records that every owner writes to its own log, and the figures of writing that log; their codec.

*Source*: docs/protocols B1, B5, C8. `txn-log` and `pending-ack-log` both hold these records. The
messages of the two logs, and of the two answers with figures, have equal fields, so one function
serves both.
"""

from typing import Literal, NamedTuple, TypeVar, assert_never

from google.protobuf.message import Message

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.messages import Fields
from stilltide.schemas.v1.pending_ack_pb2 import PendingAckBase, PendingAckLogRecord
from stilltide.schemas.v1.requests_pb2 import FlushFigures as FlushFiguresPb
from stilltide.schemas.v1.txn_log_pb2 import Base as TxnLogBase
from stilltide.schemas.v1.txn_log_pb2 import TxnLogRecord
from stilltide.schemas.values import EndOffset, Offset

M = TypeVar("M", bound=Message)

PIECE_BYTES_MAX = 512 * 1024
"""Most bytes of a piece, which shares an entry of bounded size with other records (A3)."""


class Fence(NamedTuple):
    """The first entry of a new owner of the log (B1)."""

    nonce: bytes


class Noop(NamedTuple):
    """A record that changes nothing; reading it back proves how far the log was read (B5, C1)."""


class Base(NamedTuple):
    """Piece `piece_index` of `piece_count` of the owner's whole state as of an offset.

    The state contains every effective record below `as_of`. The joined `state` bytes of all pieces
    encode the state; they are not decoded here because only a recovery needs the state.
    """

    as_of: EndOffset
    piece_index: int
    piece_count: int
    state: bytes


LogFrame = Fence | Noop | Base
"""Records that owners of both logs append without a client's request."""


class FlushFigures(NamedTuple):
    """Entries that left the buffer of an owner for one reason since its fence.

    Attributes:
        trigger: the reason, such as `records`; `unbatched`: the entries were not buffered.
        entries: number of entries.
        records: number of records in these entries.
        bytes: size of the values of these entries.
        waited_us: how long the oldest record of each entry was buffered, all entries together, in
            microseconds.
        waited_us_max: the longest of these times.
    """

    trigger: str
    entries: int
    records: int
    bytes: int
    waited_us: int
    waited_us_max: int


class LogFigures(NamedTuple):
    """How an owner writes its log, and what it has written since its fence.

    Attributes:
        epoch: offset of the owner's fence (B1).
        batching_enabled: whether records share entries (A7) at present.
        batch_records_max: largest number of records in an entry.
        batch_bytes_max: largest number of bytes of an entry's records.
        batch_delay_us_max: longest wait of the oldest record, in microseconds.
        flush_eager: whether an entry is also written as soon as none is in flight (A3).
        entries_written: entries written and read back.
        records_written: records in these entries.
        appends_in_flight: records appended and not read back yet.
        recovery_ms: time from the beginning of the ownership until the owner served.
        flushes: what made entries leave the buffer, by trigger.
    """

    epoch: Offset
    batching_enabled: bool
    batch_records_max: int
    batch_bytes_max: int
    batch_delay_us_max: int
    flush_eager: bool
    entries_written: int
    records_written: int
    appends_in_flight: int
    recovery_ms: int
    flushes: tuple[FlushFigures, ...] = ()


def pieces(as_of: EndOffset, state: bytes) -> list[Base]:
    """The pieces of a base in the order to write them; at least one."""
    starts = range(0, len(state) or 1, PIECE_BYTES_MAX)
    return [
        Base(as_of, index, len(starts), state[start : start + PIECE_BYTES_MAX])
        for index, start in enumerate(starts)
    ]


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


def figures_in(message: type[M]) -> Fields[LogFigures, M]:
    """The field table of the log's figures, which are among the other figures of an answer."""
    return Fields(LogFigures, message, flushes=Fields(FlushFigures, FlushFiguresPb))
