"""Bytes of the barriers in txn-markers (E1)."""

import pytest
from hypothesis import given

from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import (
    Barrier,
    OpenTransactions,
    Probe,
    decode_barrier,
    encode_barrier,
    encode_barrier_key,
)
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import EndOffset
from tests.support.schemas.wire import BARRIERS, DATA, ROUND_TRIPS, TOPIC_ID

KEY = "62 0000000000000005"
OPEN = "221e 0a0174 1003 1a10000102030405060708090a0b0c0d0e0f 20ac02 2807 3002"
BARRIER = Barrier(
    5,
    Probe(b"n", 300),
    7,
    (OpenTransactions(DATA, TOPIC_ID, EndOffset(300), 7, 2),),
)


def test_key_bytes():
    """Kind `b` and the coordinator, big-endian."""
    assert encode_barrier_key(5) == bytes.fromhex(KEY)


def test_value_bytes():
    """Probe, low watermark and open transactions, and nothing else."""
    value = bytes.fromhex("0a016e 10ac02 1807 " + OPEN)
    assert encode_barrier(BARRIER) == value
    assert decode_barrier(bytes.fromhex(KEY), value) == BARRIER


@ROUND_TRIPS
@given(BARRIERS)
def test_every_barrier_is_read_back_among_markers(barrier: Barrier):
    """Key and value together hold the whole barrier; the key says that it is one."""
    key, value = encode_barrier_key(barrier.coordinator), encode_barrier(barrier)
    assert markers.decode(key, value) == barrier


def test_a_tombstone_is_no_barrier():
    """A key without value answers nothing."""
    assert decode_barrier(bytes.fromhex(KEY), None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("62", "0a016e 1001"),
        (KEY + "00", "0a016e 1001"),
        (KEY, "ff"),
        (KEY, "0a056e"),
        (KEY, "1001"),
        (KEY, "0a016e"),
    ],
    ids=["short key", "long key", "garbage", "truncated", "no nonce", "no counter"],
)
def test_what_is_no_barrier_is_an_error(key: str, value: str):
    """A record of txn-markers that cannot be understood is refused, never skipped."""
    with pytest.raises(DecodeError):
        markers.decode(bytes.fromhex(key), bytes.fromhex(value))
