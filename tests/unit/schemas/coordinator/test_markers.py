"""Bytes of txn-markers (D): the key's bytes decide what compaction keeps."""

import pytest
from hypothesis import given

from stilltide.schemas.coordinator.markers import Marker, decode, encode_key, encode_value
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.support.schemas.wire import DATA, MARKERS, ROUND_TRIPS, TOPIC_ID

X = TxnId(1, 2)
KEY = "6d 00000003 0000000000000001 0000000000000002 74"
ID = "2a10000102030405060708090a0b0c0d0e0f"


@pytest.mark.parametrize(
    ("data", "txn", "hex_bytes"),
    [
        (DATA, X, KEY),
        (
            TopicPartition("é", 2**32 - 1),
            TxnId(2**64 - 1, 0),
            "6d ffffffff ffffffffffffffff 0000000000000000 c3a9",
        ),
    ],
    ids=["plain", "greatest numbers"],
)
def test_key_bytes(data: TopicPartition, txn: TxnId, hex_bytes: str):
    """Kind `m`, partition, coordinator and sequence big-endian, topic in UTF-8."""
    assert encode_key(data, txn) == bytes.fromhex(hex_bytes)


VALUES = {
    "commit": (
        Marker(DATA, X, True, EndOffset(300), EndOffset(310), 9, TOPIC_ID),
        "0801 10ac02 18b602 2009" + ID,
    ),
    "abort": (
        Marker(DATA, X, False, EndOffset(300), EndOffset(310), 0, TOPIC_ID),
        "0802 10ac02 18b602" + ID,
    ),
    "abort that wrote nothing": (
        Marker(DATA, X, False, EndOffset(0), EndOffset(0), 0, TOPIC_ID),
        "0802 1800" + ID,
    ),
    "abort without end offset": (
        Marker(DATA, X, False, EndOffset(300), None, 0, TOPIC_ID),
        "0802 10ac02" + ID,
    ),
}


@pytest.mark.parametrize(("marker", "hex_bytes"), VALUES.values(), ids=VALUES)
def test_value_bytes(marker: Marker, hex_bytes: str):
    """E8: an end offset of 0 is written, an absent one is not; both are read back as they were."""
    value = bytes.fromhex(hex_bytes)
    assert encode_value(marker) == value
    assert decode(bytes.fromhex(KEY), value) == marker


@ROUND_TRIPS
@given(MARKERS)
def test_every_marker_is_read_back(marker: Marker):
    """Key and value together hold the whole marker."""
    assert decode(encode_key(marker.data, marker.txn), encode_value(marker)) == marker


@ROUND_TRIPS
@given(MARKERS, MARKERS)
def test_keys_are_equal_only_for_the_same_transaction_and_partition(one: Marker, other: Marker):
    """Compaction never lets one transaction's marker replace another's."""
    same = (one.data, one.txn) == (other.data, other.txn)
    assert (encode_key(one.data, one.txn) == encode_key(other.data, other.txn)) == same


def test_a_tombstone_is_no_marker():
    """A key without value says nothing about the outcome."""
    assert decode(bytes.fromhex(KEY), None) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, "0801"),
        ("", "0801"),
        ("6d 00000003 0000000000000001 0000000000000002", "0801"),
        ("6e" + KEY[2:], "0801"),
        (KEY[:-2] + "ff", "0801"),
        (KEY, "ff"),
        (KEY, "0801 2a10 00"),
        (KEY, ""),
        (KEY, "0803"),
    ],
    ids=[
        "no key",
        "empty key",
        "no topic",
        "other kind",
        "topic not UTF-8",
        "garbage",
        "truncated",
        "no outcome",
        "unknown outcome",
    ],
)
def test_what_is_no_marker_is_an_error(key: str | None, value: str):
    """A record of txn-markers that cannot be understood is refused, never skipped."""
    with pytest.raises(DecodeError):
        decode(None if key is None else bytes.fromhex(key), bytes.fromhex(value))
