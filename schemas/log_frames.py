"""Records that every owner writes to its own log, and the figures of writing that log.

*Source*: docs/protocols B1, B5, C8. Both logs, `txn-log` and `pending-ack-log`, hold these records;
`log_frame_codec.py` has their bytes.
"""

from typing import NamedTuple

from stilltide.schemas.values import EndOffset, Offset

PIECE_BYTES_MAX = 512 * 1024
"""A piece shares its entry with other records, and an entry is bounded (A3)."""


class Fence(NamedTuple):
    """A new owner's claim to the log (B1)."""

    nonce: bytes


class Noop(NamedTuple):
    """Changes nothing; read back, it proves how far the log has been read (B5, C1)."""


class Base(NamedTuple):
    """Piece `piece_index` of `piece_count` of the owner's whole state as of an offset.

    Everything effective below `as_of` is in the state. The `state` bytes of all pieces are to be
    joined; they stay bytes because only a recovery needs their meaning.
    """

    as_of: EndOffset
    piece_index: int
    piece_count: int
    state: bytes


LogFrame = Fence | Noop | Base
"""What owners of either log append without a client's request."""


class LogFigures(NamedTuple):
    """How an owner writes its log, and what it has written since its fence.

    Attributes:
        epoch: offset of the owner's fence (B1).
        batching_enabled: records share entries (A7), as in force now.
        batch_records_max: largest number of records in an entry.
        batch_bytes_max: largest number of bytes of an entry's records.
        batch_delay_us_max: longest wait of the oldest record, in microseconds.
        flush_eager: entries also leave as soon as none is in flight (A3).
        entries_written: entries written and read back.
        records_written: records in these entries.
        appends_in_flight: records appended and not read back yet.
        recovery_ms: from the beginning of the ownership until the owner served.
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


def pieces(as_of: EndOffset, state: bytes) -> list[Base]:
    """The pieces of a base in the order in which they are to be written; at least one."""
    starts = range(0, len(state) or 1, PIECE_BYTES_MAX)
    return [
        Base(as_of, index, len(starts), state[start : start + PIECE_BYTES_MAX])
        for index, start in enumerate(starts)
    ]
