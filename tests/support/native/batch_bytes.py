"""Encodes batches that no producer may send: control batches, and compacted batches."""

import struct

from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import calc_crc32c

from stilltide.schemas.native.transactions import NO_PRODUCER_ID, Control
from tests.support.native.log import Piece

CONTROL_TYPES = {Control.ABORT: 0, Control.COMMIT: 1, Control.OTHER: 2}
_HEADER = DefaultRecordBatch.HEADER_STRUCT
_TIME_MS = 1_700_000_000_000
VALUE_BYTES = 8


def value_of(offset: int) -> bytes:
    """The value of the record at an offset, unlike the value at every other offset."""
    return b"%0*d" % (VALUE_BYTES, offset)


def encode(piece: Piece, *, epoch: int = 0, value_bytes: int = VALUE_BYTES) -> bytes:
    """The bytes of a batch in a segment file.

    Args:
        piece: the batch.
        epoch: epoch of the producer.
        value_bytes: size of each value.
    """
    control = piece.control
    control_type = CONTROL_TYPES.get(control) if control else None
    records = []
    for offset in piece.offsets:
        if control_type is None:
            records.append(
                (offset - piece.base, b"%d" % offset, value_of(offset).ljust(value_bytes))
            )
        else:
            records.append((0, struct.pack(">hh", 0, control_type), bytes(6)))
    return encode_batch(
        base=piece.base,
        last=piece.last,
        producer=piece.producer,
        epoch=epoch,
        transactional=piece.transactional,
        control=control is not None,
        records=records,
    )


def encode_batch(
    *,
    base: int,
    last: int,
    producer: int,
    epoch: int = 0,
    sequence: int | None = None,
    transactional: bool = False,
    control: bool = False,
    time_ms: int = _TIME_MS,
    records: list[tuple[int, bytes, bytes]],
) -> bytes:
    """A batch of (offset delta, key, value); the arguments alone decide its extent and flags.

    The sequence is the base offset unless given.
    """
    first_sequence = base if sequence is None else sequence
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=transactional,
        producer_id=producer,
        producer_epoch=-1 if producer == NO_PRODUCER_ID else epoch,
        base_sequence=-1 if producer == NO_PRODUCER_ID or control else first_sequence,
        batch_size=1 << 30,
    )
    for delta, key, value in records:
        builder.append(delta, time_ms, key, value, [])
    data = bytearray(builder.build())
    fields = list(_HEADER.unpack_from(data))
    fields[0], fields[6] = base, last - base
    fields[5] |= DefaultRecordBatch.CONTROL_MASK if control else 0
    fields[7] = fields[8] = time_ms
    _HEADER.pack_into(data, 0, *fields)
    crc = calc_crc32c(memoryview(data)[DefaultRecordBatch.ATTRIBUTES_OFFSET :])
    struct.pack_into(">I", data, DefaultRecordBatch.CRC_OFFSET, crc)
    return bytes(data)
