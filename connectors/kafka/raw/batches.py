"""Parses batch headers from fetched bytes, by kafka-python's classes.

*Source*: docs/protocols F. Records are not decoded: that would take nine tenths of the time.

*Invariants*: a batch is returned only after a check of its checksum, which covers its records too;
the one record that is decoded is a marker. An incomplete batch at the end, as fetches have, is left
out.

Refuses message formats before v2: they have no producer ids, and Kafka 4 no longer writes them.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import Any

from kafka.errors import CorruptRecordError, UnsupportedVersionError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from stilltide.schemas.native.batches import Batch, Control

_MAGIC_V2 = 2
_TRANSACTIONAL = DefaultRecordBatch.TRANSACTIONAL_MASK
_CONTROL = DefaultRecordBatch.CONTROL_MASK
_CONTROLS = {0: Control.ABORT, 1: Control.COMMIT}
_KEY = Struct(">hh")  # version and type; a later Kafka may append fields


class _MarkerBatch(DefaultRecordBatch):
    """A control batch that returns its record with the key's bytes.

    kafka-python's own class for records of control batches refuses a key of more than four bytes.
    """

    @property
    def is_control_batch(self) -> bool:
        """Whether records are of kafka-python's class for control records: never."""
        return False


def parse_batches(fetched: bytes) -> Iterator[Batch]:
    """The complete batches in fetched bytes, in their order; 3 us for each.

    Raises:
        CorruptRecordError: the bytes are not batches, or fail a checksum.
        UnsupportedVersionError: a message format before v2.
    """
    end = 0
    records: Any = MemoryRecords(fetched)  # Any: a NewType's call costs as much as a property
    for batch in records:
        if batch.magic < _MAGIC_V2:
            raise UnsupportedVersionError(f"message format v{batch.magic} at {batch.base_offset}")
        if not batch.validate_crc():
            raise CorruptRecordError(f"wrong checksum of the batch at {batch.base_offset}")
        # Each property is a call, and some make several calls: reading each once halves the time.
        base_offset, attributes = batch.base_offset, batch.attributes
        start, end = end, end + batch.size_in_bytes
        yield Batch(
            base_offset,
            base_offset + batch.last_offset_delta,
            batch.producer_id,
            attributes & _TRANSACTIONAL != 0,
            _control(_MarkerBatch(fetched[start:end])) if attributes & _CONTROL else None,
            batch.records_count,
        )


def _control(batch: _MarkerBatch) -> Control:
    """The outcome in the first record, read as `ControlRecordType` of Kafka's client for Java does.

    That class reads the first two fields of the key. It accepts every version that is not negative,
    and ignores fields that a later version appends.
    """
    if not batch.records_count:
        return Control.OTHER
    try:
        version, kind = _KEY.unpack_from(next(iter(batch)).key)
    except (StructError, StopIteration, TypeError) as error:
        raise CorruptRecordError(
            f"not a control batch at {batch.base_offset}: {error!r}"
        ) from error
    if version < 0:
        raise CorruptRecordError(f"not a control batch at {batch.base_offset}: version {version}")
    return _CONTROLS.get(kind, Control.OTHER)
