"""C16: bytes and elements of a message are counted before it is parsed."""

import time

import pytest

from stilltide.schemas.coordinator.requests import encode_request
from stilltide.schemas.coordinator.transactions import Open, Registered
from stilltide.schemas.coordinator.txn_log import decode_request
from stilltide.schemas.errors import DecodeError, OversizeError
from stilltide.schemas.framing import (
    LEAF,
    MAGIC,
    REQUEST_BYTES_MAX,
    REQUESTS_MAX,
    VERSION,
    check_elements,
    decode_value,
    encode_batch,
    shape_of,
)
from stilltide.schemas.service.envelopes import Request
from stilltide.schemas.values import EndOffset, TopicPartition


def test_c16_a_batch_of_too_many_parts_is_not_parsed():
    """C16: 1.9 million empty parts in 3.8 MB are refused after the first thousand."""
    value = MAGIC + VERSION + b"\x0a\x00" * 1_900_000
    began = time.process_time()
    with pytest.raises(OversizeError):
        decode_value(value, records_max=REQUESTS_MAX)
    assert time.process_time() - began < 0.2


def test_c16_a_batch_within_the_bound_is_read():
    """C16: as many requests as clients put into a record, and twice as many."""
    requests = [b"x" * 100] * REQUESTS_MAX
    assert decode_value(encode_batch(requests), records_max=REQUESTS_MAX) == requests
    with pytest.raises(OversizeError):
        decode_value(encode_batch([*requests, b"y"]), records_max=REQUESTS_MAX)


def test_c16_a_request_of_too_many_elements_is_not_parsed():
    """C16: half a million empty partitions."""
    empty = b"\x1a\x00" * 500_000
    size = len(empty).to_bytes(3, "big")
    varint = bytes([size[2] & 0x7F | 0x80, (len(empty) >> 7) & 0x7F | 0x80, len(empty) >> 14])
    data = b"\x0a\x10" + bytes(16) + b"\x10\x01\x2a" + varint + empty
    with pytest.raises(OversizeError):
        decode_request(data)


def test_c16_the_largest_request_of_a_client_is_read():
    """C16: a thousand partitions of topics with the longest names."""
    partitions = tuple(
        Registered(TopicPartition("t" * 249, it), EndOffset(2**62), bytes(16)) for it in range(1000)
    )
    request = Request(bytes(16), 1, 0, 0, Open(5000, 1, partitions))
    data = encode_request(request)
    assert len(data) < REQUEST_BYTES_MAX
    assert decode_request(data) == request


def test_c16_a_long_request_is_not_parsed():
    """C16: by its bytes alone."""
    with pytest.raises(OversizeError):
        decode_request(bytes(REQUEST_BYTES_MAX + 1))


@pytest.mark.parametrize("data", [b"\x0b" * 100, b"\x80" * 100, b"\x0a" * 101, b"\xff" * 100])
def test_what_is_no_message_is_refused(data: bytes):
    """A count of elements that cannot be told is an error, never an endless walk."""
    with pytest.raises(DecodeError):
        check_elements(data, 10, LEAF, "a thing")


def test_elements_are_counted_where_the_shape_says():
    """Fields within a field count only if the shape names it."""
    inner = b"\x08\x01" * 20
    data = b"\x2a" + bytes([len(inner)]) + inner
    check_elements(data, 10, LEAF, "a thing")
    with pytest.raises(OversizeError):
        check_elements(data, 10, shape_of([(5,)]), "a thing")
