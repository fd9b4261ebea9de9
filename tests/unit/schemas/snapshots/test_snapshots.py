"""Bytes of txn-snapshots (E): the key's bytes decide what compaction keeps."""

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.snapshots import snapshots
from stilltide.schemas.snapshots.snapshots import (
    COORDINATOR_BYTES_MAX,
    SEQUENCE_MAX,
    EndKey,
    PartKey,
    SnapshotEnd,
    SnapshotStar,
    StarKey,
    TrimPair,
    id_bytes,
)
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.schemas.wire import DATA, DATA_PARTITIONS, IDS, ROUND_TRIPS, TOPIC_ID, U64

PART_KEY = "70 00000003 0000000000000102 74"
END_KEY = "65 00000003 74"
ABORTED = {1: [300, 302, 301], 0: [0]}
ABORTED_HEX = "0801 1204 d804 04 01"
PART_HEX = "0801 1208 " + ABORTED_HEX + "1203 120100"
END = SnapshotEnd(
    TOPIC_ID,
    EndOffset(300),
    EndOffset(7),
    3,
    (1, 2**32 - 1),
    {1: [300, 302, 301]},
    {2: 5, 1: 300},
    EndOffset(2),
    (TrimPair(EndOffset(9), {1: 300}),),
)
END_HEX = (
    "0801 1210000102030405060708090a0b0c0d0e0f 18ac02 2007 2803 3208 01000000 ffffffff 3a08"
    + ABORTED_HEX
    + "4205 0801 10ac02 4204 0802 1005 4802 5209 0809 1205 0801 10ac02"
)

SEQUENCES = st.integers(0, SEQUENCE_MAX)
ABORTED_IDS = st.dictionaries(U64, st.lists(SEQUENCES, min_size=1, max_size=5), max_size=3)
FLOORS = st.dictionaries(U64, U64, max_size=3)
ENDS = st.builds(
    SnapshotEnd,
    IDS,
    U64.map(EndOffset),
    U64.map(EndOffset),
    U64,
    st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple),
    ABORTED_IDS,
    FLOORS,
    U64.map(EndOffset),
    st.lists(st.builds(TrimPair, U64.map(EndOffset), FLOORS), max_size=2).map(tuple),
)


def test_key_bytes():
    """Kind, partition and number big-endian, topic in UTF-8; each is read back."""
    assert snapshots.part_key(DATA, 0x102) == bytes.fromhex(PART_KEY)
    assert snapshots.end_key(DATA) == bytes.fromhex(END_KEY)
    assert snapshots.decode_key(bytes.fromhex(PART_KEY)) == PartKey(DATA, 0x102)
    assert snapshots.decode_key(bytes.fromhex(END_KEY)) == EndKey(DATA)
    assert snapshots.decode_key(b"*") == StarKey()


@ROUND_TRIPS
@given(DATA_PARTITIONS, DATA_PARTITIONS, U64, U64)
def test_keys_are_equal_only_for_the_same_part(
    one: TopicPartition, other: TopicPartition, number: int, another: int
):
    """Compaction never lets a part replace another one, or an end."""
    keys = {
        PartKey(one, number): snapshots.part_key(one, number),
        PartKey(other, another): snapshots.part_key(other, another),
        EndKey(one): snapshots.end_key(one),
        EndKey(other): snapshots.end_key(other),
        StarKey(): snapshots.STAR_KEY,
    }
    assert len(set(keys.values())) == len(keys)
    for key, data in keys.items():
        found = snapshots.decode_key(data)
        assert (type(found), found) == (type(key), key)


def test_part_bytes():
    """Sequences in the order of their markers, as differences."""
    assert snapshots.encode_part(ABORTED) == bytes.fromhex(PART_HEX)
    assert snapshots.decode_part(bytes.fromhex(PART_HEX)) == ABORTED


def test_end_bytes():
    """Positions, checksums of the parts, unsealed ids, floors and pairs."""
    assert snapshots.encode_end(END) == bytes.fromhex(END_HEX)
    assert snapshots.decode_end(bytes.fromhex(END_HEX)) == END


def test_star_bytes():
    """The marker offset and the floors of partitions without snapshot."""
    star = SnapshotStar(EndOffset(300), {1: 5})
    data = bytes.fromhex("0801 10ac02 1a04 0801 1005")
    assert snapshots.encode_star(star) == data
    assert snapshots.decode_star(data) == star


@ROUND_TRIPS
@given(ABORTED_IDS, ENDS, st.builds(SnapshotStar, U64.map(EndOffset), FLOORS))
def test_everything_is_read_back(
    aborted: dict[int, list[int]], end: SnapshotEnd, star: SnapshotStar
):
    """Encoding loses nothing, not even the order of ids; a later number never breaks it."""
    assert snapshots.decode_part(snapshots.encode_part(aborted)) == aborted
    assert snapshots.decode_end(snapshots.encode_end(end)) == end
    assert snapshots.decode_star(snapshots.encode_star(star)) == star


@ROUND_TRIPS
@given(U64, st.lists(SEQUENCES, min_size=1, max_size=60))
def test_the_size_of_a_part_is_known_before_it_is_made(coordinator: int, sequences: list[int]):
    """E2: what is counted id by id bounds the bytes, and not by far."""
    counted = sum(map(id_bytes, sequences, [0, *sequences[:-1]]))
    empty = len(snapshots.encode_part({}))
    size = len(snapshots.encode_part({coordinator: sequences})) - empty
    assert counted <= size <= counted + COORDINATOR_BYTES_MAX


def test_a_checksum_is_of_key_and_value():
    """A part of another topic, or one that was cut off, is not the part its end names."""
    value = bytes.fromhex(PART_HEX)
    sums = {
        snapshots.checksum(snapshots.part_key(DATA, 2), value),
        snapshots.checksum(snapshots.part_key(DATA, 3), value),
        snapshots.checksum(snapshots.part_key(TopicPartition("u", 3), 2), value),
        snapshots.checksum(snapshots.part_key(DATA, 2), value[:-1]),
    }
    assert len(sums) == 4
    assert snapshots.checksum(b"ab", b"c") == 0x352441C2


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "70 00000003 0000000000000102",
        "65 00000003",
        "2a00",
        "71 00000003 74",
        "6500000003ff",
    ],
    ids=["none", "empty", "no topic in part", "no topic in end", "long", "other kind", "not UTF-8"],
)
def test_what_is_no_key_is_an_error(key: str | None):
    """A record that cannot be understood is refused, never skipped."""
    with pytest.raises(DecodeError):
        snapshots.decode_key(None if key is None else bytes.fromhex(key))


@pytest.mark.parametrize(
    "decode", [snapshots.decode_part, snapshots.decode_end, snapshots.decode_star]
)
def test_a_later_version_is_refused(decode: Callable[[bytes], object]):
    """What a newer program wrote is never guessed at; the hint is to upgrade."""
    with pytest.raises(UnknownVersionError, match="version 2") as caught:
        decode(bytes.fromhex("0802"))
    assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "primary"),
    [
        ("ff", "not the part of a snapshot"),
        (PART_HEX[:-4], "not the part of a snapshot"),
        ("0801 1203 120101", "a sequence of coordinator 0 is out of range"),
        ("0801 120e 120c feffffffffffffffff01 0202", "a sequence of coordinator 0 is out of range"),
        ("0801 1203 120100 1203 120100", "coordinator 0 is there twice, or without ids"),
        ("0801 1202 0801", "coordinator 1 is there twice, or without ids"),
    ],
    ids=["garbage", "truncated", "negative", "too large", "coordinator twice", "no ids"],
)
def test_what_is_no_part_is_an_error(data: str, primary: str):
    """Bytes that no writer makes are refused with the reason."""
    with pytest.raises(DecodeError) as caught:
        snapshots.decode_part(bytes.fromhex(data))
    assert caught.value.primary == primary


@pytest.mark.parametrize("data", ["ff", END_HEX[:-2]], ids=["garbage", "truncated"])
def test_what_is_no_end_is_an_error(data: str):
    """Bytes that no writer makes are refused with a hint."""
    with pytest.raises(DecodeError, match="not the end of a snapshot") as caught:
        snapshots.decode_end(bytes.fromhex(data))
    assert caught.value.hint
