"""Fetched bytes to headers: what is read of them, and what is refused."""

import random

import pytest
from kafka.errors import CorruptRecordError, UnsupportedVersionError
from kafka.record.memory_records import MemoryRecordsBuilder

from stilltide.connectors.kafka.raw.fetch import parse_batches
from stilltide.schemas.native.transactions import Batch, Control
from stilltide.schemas.values import Offset
from tests.support.native.batch_bytes import encode, encode_batch
from tests.support.native.log import NativeLog, grow


def test_headers_are_read_back():
    """Every field of every batch of a history, compacted or not, also the emptied ones."""
    rng = random.Random(7)
    log = NativeLog()
    grow(log, rng.randrange, steps=300)
    written = [piece.header for piece in log.pieces]
    assert list(parse_batches(b"".join(map(encode, log.pieces)))) == written
    log.compact(rng.randrange)
    left = [piece.header for piece in log.pieces]
    assert list(parse_batches(b"".join(map(encode, log.pieces)))) == left
    assert {Control.OTHER, Control.ABORT, Control.COMMIT, None} == {it.control for it in left}
    assert any(it.record_count == 0 for it in left if it.control is None)


@pytest.mark.parametrize(
    ("key", "control"),
    [
        ("0000 0000", Control.ABORT),
        ("0000 0001", Control.COMMIT),
        ("0001 0000", Control.ABORT),
        ("0005 0001", Control.COMMIT),
        ("0000 0002", Control.OTHER),
        ("0000 ffff", Control.OTHER),
        ("0001 0000 00", Control.ABORT),
        ("0001 0001 0000 0007 ffff", Control.COMMIT),
        ("0000 0000 0001", Control.ABORT),
        ("7fff 0002 0001", Control.OTHER),
    ],
)
def test_markers(key: str, control: Control):
    """The type decides, whatever the version of the key and whatever a later version appends.

    Types of other features say nothing.
    """
    record = (0, bytes.fromhex(key), bytes(6))
    data = encode_batch(
        base=5, last=5, producer=7, transactional=True, control=True, records=[record]
    )
    assert list(parse_batches(data)) == [Batch(Offset(5), Offset(5), 7, True, control, 1)]


def test_a_batch_that_was_cut_off_is_left_out():
    """A fetch ends anywhere; what is whole before that is given."""
    first = encode_batch(base=0, last=1, producer=-1, records=[(0, b"k", b"v"), (1, b"k", b"w")])
    second = encode_batch(base=2, last=2, producer=-1, records=[(0, b"k", b"v")])
    for cut in range(len(second)):
        assert [it.base_offset for it in parse_batches(first + second[:cut])] == [0]
    assert [it.base_offset for it in parse_batches(first + second)] == [0, 2]
    assert list(parse_batches(b"")) == []


def test_a_bit_that_fell_is_found():
    """A changed bit anywhere behind the checksum, in flags, ids or records, is an error."""
    data = encode_batch(base=0, last=0, producer=7, transactional=True, records=[(0, b"k", b"v")])
    for place in range(17, len(data)):
        broken = bytearray(data)
        broken[place] ^= 0x10
        with pytest.raises(CorruptRecordError):
            list(parse_batches(bytes(broken)))


def test_a_marker_that_cannot_be_read_is_an_error():
    """A control batch is never taken for one that says nothing because it is broken."""
    for records in ([(0, b"\0\0", b"")], [(0, b"", b"")], [(0, b"\xff\xff\0\1", b"")]):
        data = encode_batch(
            base=0, last=0, producer=7, transactional=True, control=True, records=records
        )
        with pytest.raises(CorruptRecordError, match="not a control batch"):
            list(parse_batches(data))


def test_a_format_without_producers_is_refused():
    """Message formats before v2 are named, not misread."""
    builder = MemoryRecordsBuilder(magic=1, compression_type=0, batch_size=1 << 16)
    builder.append(1, b"k", b"v")
    builder.close()
    with pytest.raises(UnsupportedVersionError, match="v1"):
        list(parse_batches(bytes(builder.buffer())))
