"""PIP-160 framing (A): magic, version, batch; bare records beside it."""

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from stilltide.schemas import framing
from stilltide.schemas.coordinator.requests import encode_request
from stilltide.schemas.coordinator.txn_log import encode_own
from stilltide.schemas.errors import DecodeError, OversizeError, UnknownVersionError
from stilltide.schemas.framing import decode_value, encode_batch, is_framed
from stilltide.schemas.service.envelopes import Request
from tests.support.buffered_log.pip_160 import records_of
from tests.support.schemas.wire import OWN_BODIES, REQUESTS, ROUND_TRIPS

PREFIX = "0e01 0001 "

FRAME_BYTES_MAX = 4 + 6
"""What framing adds to one record at most."""


def test_batch_bytes():
    """A: magic 0x0E01, version 1, big-endian, then each record as field 1."""
    value = bytes.fromhex(PREFIX + "0a0161 0a00 0a026263")
    assert encode_batch([b"a", b"", b"bc"]) == value
    assert decode_value(value) == [b"a", b"", b"bc"]


@ROUND_TRIPS
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_every_batch_is_read_back_in_order(records: list[bytes]):
    """A4: a record's index in the batch is its place in the order of appends."""
    assert decode_value(encode_batch(records)) == records


@ROUND_TRIPS
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_a_reader_that_knows_only_the_pip_reads_every_batch(records: list[bytes]):
    """PIP-160: nothing but magic, version and a repeated field 1 is needed."""
    assert records_of(encode_batch(records)) == records


@ROUND_TRIPS
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_framing_adds_what_is_promised_at_most(records: list[bytes]):
    """The prefix, a tag and a length for each record: limits are set by this bound."""
    added = len(encode_batch(records)) - sum(map(len, records))
    assert added <= FRAME_BYTES_MAX * len(records)


@ROUND_TRIPS
@given(st.lists(st.lists(OWN_BODIES, min_size=1, max_size=3), min_size=1, max_size=5))
def test_bare_and_framed_values_mix(entries: list[list]):
    """A: readers accept both, whatever the writer's setting was at the time."""
    records = [[encode_own(body, 1) for body in bodies] for bodies in entries]
    values = [one[0] if len(one) == 1 else encode_batch(one) for one in records]
    assert [decode_value(value) for value in values] == records


@ROUND_TRIPS
@given(REQUESTS)
def test_no_bare_record_looks_framed(one: Request):
    """A: the first byte of a serialised message is never that of the magic."""
    assert not is_framed(encode_request(one))


@ROUND_TRIPS
@given(st.binary(max_size=30))
def test_arbitrary_bytes_are_bare_or_an_error(value: bytes):
    """A: whatever does not begin like a batch is one bare record, untouched."""
    assume(value[:1] != b"\x0e")
    assert decode_value(value) == [value]


@pytest.mark.parametrize(
    ("hex_bytes", "error", "primary"),
    [
        ("0e", DecodeError, "magic 0e is not 0e01"),
        ("0e02 0001 0a0161", DecodeError, "magic 0e02 is not 0e01"),
        ("0e01", DecodeError, "a batch that ends within its version"),
        ("0e01 00", DecodeError, "a batch that ends within its version"),
        ("0e01 0000 0a0161", UnknownVersionError, "batch version 0000 is unknown"),
        ("0e01 0002 0a0161", UnknownVersionError, "batch version 0002 is unknown"),
        ("0e01 0100 0a0161", UnknownVersionError, "batch version 0100 is unknown"),
        (PREFIX, DecodeError, "a batch without records"),
        (PREFIX + "1001", DecodeError, "a batch without records"),
        (PREFIX + "0a0261", DecodeError, "not a batch behind magic and version"),
        (PREFIX + "0a0161 ff", DecodeError, "not a batch behind magic and version"),
    ],
)
def test_what_is_no_batch_is_an_error(hex_bytes: str, error: type[DecodeError], primary: str):
    """A: a broken or later batch is refused with the reason, never guessed at."""
    with pytest.raises(DecodeError) as caught:
        decode_value(bytes.fromhex(hex_bytes))
    assert type(caught.value) is error
    assert caught.value.primary == primary


def test_a_missing_value_is_an_error():
    """A log has no tombstones: a null value was written by something else."""
    with pytest.raises(DecodeError, match="no value"):
        decode_value(None)


def test_a_value_longer_than_any_writer_makes_is_refused_before_it_is_parsed():
    """A: the cap on bytes holds before parsing, at exactly its bound."""
    assert decode_value(bytes(framing.VALUE_BYTES_MAX)) == [bytes(framing.VALUE_BYTES_MAX)]
    with pytest.raises(OversizeError, match="bytes; the most is 8388608"):
        decode_value(b"\x0e" + bytes(framing.VALUE_BYTES_MAX))


def test_a_batch_of_more_records_than_any_writer_makes_is_refused():
    """A: the cap on records holds after parsing, at exactly its bound."""
    most = bytes.fromhex(PREFIX) + b"\x0a\x00" * framing.RECORDS_MAX
    assert len(decode_value(most)) == framing.RECORDS_MAX
    with pytest.raises(OversizeError, match="1000001 records; the most is 1000000"):
        decode_value(most + b"\x0a\x00")
