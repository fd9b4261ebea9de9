"""Bytes of replication: the `origin` header, replication-positions and replication-markers."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError, ForeignKeyError, UnknownVersionError
from stilltide.schemas.replication import positions
from stilltide.schemas.replication import signals as markers
from stilltide.schemas.replication.origins import (
    Claims,
    Incarnation,
    Origin,
    OriginStamp,
    origin_of,
    topic_incarnation,
)
from stilltide.schemas.replication.positions import Bucket, BucketKey
from stilltide.schemas.replication.signals import (
    Applied,
    AppliedKey,
    Position,
    PositionSnapshot,
    PositionSnapshotRequest,
    PositionSnapshotResponse,
    PositionSnapshots,
    RequestKey,
    ResponseKey,
    SignalKey,
    SignalValue,
    SnapshotsKey,
    Update,
    UpdateKey,
)
from stilltide.schemas.v1 import replication_pb2 as pb
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range
from tests.support.hostile import HOSTILE, is_harmless
from tests.support.schemas.wire import DATA, DATA_PARTITIONS, IDS, ROUND_TRIPS, TOPIC_ID, U32, U64

A, B = ClusterName("a"), ClusterName("b")
TOPIC = topic_incarnation(TOPIC_ID)
ON_A = Incarnation(A, TOPIC)
ORIGIN_HEX = "0001020304050607 000000000000012c 61"
CLAIMS: Claims = {ON_A: (Range(Offset(0), EndOffset(300)), Range(Offset(301), EndOffset(302)))}
CLAIMS_HEX = "0a0161 1208 0001020304050607 1a07 00ac02ad02ae02"
POSITION = Position(Incarnation(B, TOPIC), EndOffset(300))
POSITION_HEX = "0a0162 1208 0001020304050607 18ac02"

GOLDEN: list[tuple[SignalKey, str, SignalValue, str]] = [
    (
        RequestKey(DATA, A),
        "71 00000003 0001 0000 0001 61 74",
        PositionSnapshotRequest(TOPIC_ID, 2, TOPIC, EndOffset(300)),
        "0801 1210000102030405060708090a0b0c0d0e0f 1802 22080001020304050607 28ac02",
    ),
    (
        ResponseKey(DATA, A, B),
        "61 00000003 0001 0001 0001 61 62 74",
        PositionSnapshotResponse(TOPIC_ID, 2, TOPIC, EndOffset(300)),
        "0801 1210000102030405060708090a0b0c0d0e0f 1802 22080001020304050607 28ac02",
    ),
    (
        SnapshotsKey(DATA, A),
        "73 00000003 0001 0000 0001 61 74",
        PositionSnapshots(
            TOPIC, EndOffset(299), (PositionSnapshot(TOPIC_ID, EndOffset(301), (POSITION,), 5, 6),)
        ),
        "0801 12080001020304050607 18ab02 222b 0a10000102030405060708090a0b0c0d0e0f 10ad02"
        "1a10" + POSITION_HEX + "2005 2806",
    ),
    (
        UpdateKey(DATA, A, "g"),
        "75 00000003 0001 0000 0001 61 74 67",
        Update(1, TOPIC, Offset(300), CLAIMS, (POSITION,), TOPIC_ID),
        "0801 1001 1a080001020304050607 20ac02 2a16"
        + CLAIMS_HEX
        + "3210"
        + POSITION_HEX
        + "3a10000102030405060708090a0b0c0d0e0f",
    ),
    (
        AppliedKey(DATA, A, "g"),
        "64 00000003 0001 0000 0001 61 74 67",
        Applied(1, TOPIC, Offset(0), Offset(300), Offset(301), CLAIMS),
        "0801 1001 1a080001020304050607 2000 28ac02 30ad02 3a16" + CLAIMS_HEX,
    ),
]
BUCKET = Bucket(TOPIC, TOPIC[::-1], Offset(1), EndOffset(300), Offset(2), EndOffset(301), CLAIMS)
BUCKET_HEX = (
    "0801 12080001020304050607 1a080706050403020100 2001 28ac02 3002 38ad02 4216" + CLAIMS_HEX
)

NAMES = st.text(min_size=1, max_size=4).map(ClusterName)
TOPICS = st.binary(min_size=8, max_size=8)
INCARNATIONS = st.builds(Incarnation, NAMES, TOPICS)
OFFSETS = U64.map(Offset)
ENDS = U64.map(EndOffset)
INTERVALS = st.lists(U64, min_size=2, max_size=6, unique=True).map(
    lambda bounds: tuple(
        Range(Offset(one), EndOffset(end))
        for one, end in zip(sorted(bounds)[:-1:2], sorted(bounds)[1::2], strict=False)
    )
)
ANY_CLAIMS = st.dictionaries(INCARNATIONS, INTERVALS, max_size=3)
POSITIONS = st.lists(st.builds(Position, INCARNATIONS, ENDS), max_size=2).map(tuple)
MARKERS = st.one_of(
    st.tuples(
        st.builds(RequestKey, DATA_PARTITIONS, NAMES),
        st.builds(PositionSnapshotRequest, IDS, U32, TOPICS, ENDS),
    ),
    st.tuples(
        st.builds(ResponseKey, DATA_PARTITIONS, NAMES, NAMES),
        st.builds(PositionSnapshotResponse, IDS, U32, TOPICS, ENDS),
    ),
    st.tuples(
        st.builds(SnapshotsKey, DATA_PARTITIONS, NAMES),
        st.builds(
            PositionSnapshots,
            TOPICS,
            ENDS,
            st.lists(st.builds(PositionSnapshot, IDS, ENDS, POSITIONS, U64, U64), max_size=2).map(
                tuple
            ),
        ),
    ),
    st.tuples(
        st.builds(UpdateKey, DATA_PARTITIONS, NAMES, st.text(max_size=4)),
        st.builds(Update, U64, TOPICS, st.none() | OFFSETS, ANY_CLAIMS, POSITIONS, IDS),
    ),
    st.tuples(
        st.builds(AppliedKey, DATA_PARTITIONS, NAMES, st.text(max_size=4)),
        st.builds(
            Applied,
            U64,
            TOPICS,
            st.none() | OFFSETS,
            st.none() | OFFSETS,
            st.none() | OFFSETS,
            ANY_CLAIMS,
        ),
    ),
)


def test_origin_bytes():
    """H1: incarnation, offset big-endian, cluster in UTF-8."""
    value = bytes.fromhex(ORIGIN_HEX)
    assert OriginStamp(ON_A).value(Offset(300)) == value
    assert origin_of([("origin", value)]) == Origin(ON_A, Offset(300))


def test_the_last_origin_header_counts():
    """H1: a link puts its own behind whatever a record already has."""
    value = bytes.fromhex(ORIGIN_HEX)
    assert origin_of([("origin", b"the moon"), ("origin", value), ("k", None)]) is not None
    assert origin_of([("origin", value), ("origin", b"the moon")]) is None


def test_many_copies_are_stamped_as_one_is():
    """Those without headers too."""
    mine = OriginStamp(ON_A)
    headers = [None, [], [("txn", b"x"), ("own", b"1")], [("origin", mine.value(Offset(9)))]]
    offsets = [Offset(number) for number in range(4)]
    assert mine.stamped(headers, offsets) == [
        mine.headers(one, offset) for one, offset in zip(headers, offsets, strict=True)
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"x" * 16,
        b"x" * 16 + b"\xff",
        b"https://shop.example/cart",
        "https://shop.example/cart".encode("utf-16-le"),
        "https://shop.example/cart".encode("utf-16-be"),
        bytes(8) + (2**56).to_bytes(8) + b"a",
        bytes(16) + b"a" * 1009,
    ],
)
def test_an_origin_that_no_link_wrote_is_none(value: bytes | None):
    """H1: an application may have a header of that name; it is never an error."""
    assert origin_of([("origin", value)]) is None
    kept = OriginStamp(ON_A).headers([("origin", value)], Offset(300))
    assert kept == [("origin", value), ("origin", bytes.fromhex(ORIGIN_HEX))]


def test_a_copy_keeps_what_the_application_wrote():
    """H1: `txn` goes, a forwarded origin is replaced, everything else keeps order and repeats."""
    mine = OriginStamp(ON_A)
    forwarded = OriginStamp(Incarnation(B, TOPIC)).value(Offset(1))
    headers = [("k", b"1"), ("txn", b"x" * 16), ("origin", forwarded), ("k", None)]
    assert mine.headers(headers, Offset(300)) == [
        ("k", b"1"),
        ("k", None),
        ("origin", bytes.fromhex(ORIGIN_HEX)),
    ]
    assert mine.headers(None, Offset(300)) == [("origin", bytes.fromhex(ORIGIN_HEX))]


@pytest.mark.parametrize(
    ("key", "key_hex", "value", "value_hex"), GOLDEN, ids=lambda one: type(one).__name__
)
def test_marker_bytes(key: SignalKey, key_hex: str, value: SignalValue, value_hex: str):
    """Keys are laid out by hand, values are protobuf; both are read back."""
    assert markers.encode_key(key) == bytes.fromhex(key_hex)
    assert markers.encode_value(value) == bytes.fromhex(value_hex)
    found = markers.decode(bytes.fromhex(key_hex), bytes.fromhex(value_hex))
    assert (type(found[0]), found) == (type(key), (key, value))


@ROUND_TRIPS
@given(MARKERS)
def test_every_marker_is_read_back(marker: tuple[SignalKey, SignalValue]):
    """Encoding loses nothing, not even that there is no offset."""
    key, value = marker
    found = markers.decode(markers.encode_key(key), markers.encode_value(value))
    assert (type(found[0]), found) == (type(key), marker)


@ROUND_TRIPS
@given(MARKERS, MARKERS)
def test_marker_keys_are_equal_only_for_the_same_marker(
    one: tuple[SignalKey, SignalValue], other: tuple[SignalKey, SignalValue]
):
    """Compaction never lets a marker replace another one."""
    same = (type(one[0]), one[0]) == (type(other[0]), other[0])
    assert (markers.encode_key(one[0]) == markers.encode_key(other[0])) == same


def test_a_tombstone_is_a_key_alone():
    """A marker that was deleted."""
    key = UpdateKey(DATA, A, "g")
    assert markers.decode(markers.encode_key(key), None) == (key, None)


@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"x" * 20,
        bytes.fromhex("71 00000003 0001 0000 0001 61"),
        bytes.fromhex("71 00000003 0001 0001 0001 61 62 74"),
        bytes.fromhex("61 00000003 0001 0000 0001 61 74"),
        bytes.fromhex("71 00000003 0001 0000 0001 61 74 67"),
        bytes.fromhex("71 00000003 0001 0000 0001 61 ff"),
        bytes.fromhex("75 00000003 0001 0000 0009 61 74 67"),
    ],
)
def test_a_key_of_no_marker_is_an_error(key: bytes | None):
    """A record that cannot be understood stops the controller, it is never skipped."""
    with pytest.raises(DecodeError):
        markers.decode(key, b"")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("q", "ff"),
        ("q", "0801 1201 00 22080001020304050607"),
        ("q", "0801 1210000102030405060708090a0b0c0d0e0f 220100"),
        ("u", "0801 1a080001020304050607 2a11 0a0161 1208 0001020304050607 1a02 0500"),
        ("u", "0801 1a080001020304050607 2a0e 0a0161 1208 0001020304050607 "),
    ],
    ids=["garbage", "short id", "short incarnation", "descending", "truncated"],
)
def test_a_value_of_no_marker_is_an_error(kind: str, value: str):
    """Offsets, ids and incarnations are checked before anything is done by them."""
    key = markers.encode_key(RequestKey(DATA, A) if kind == "q" else UpdateKey(DATA, A, "g"))
    with pytest.raises(DecodeError):
        markers.decode(key, bytes.fromhex(value))


def test_a_later_version_is_an_error():
    """An old program never guesses what a newer one means."""
    with pytest.raises(UnknownVersionError, match="has version 2"):
        markers.decode(markers.encode_key(RequestKey(DATA, A)), bytes.fromhex("0802"))
    with pytest.raises(UnknownVersionError, match="has version 2"):
        positions.decode_bucket(bytes.fromhex("0802"))


@pytest.mark.parametrize("age_ms", [None, 0, 7000])
def test_a_beat_is_a_foreign_key_to_readers_of_buckets(age_ms: int | None):
    """I13, B10: readers of an earlier version pass it over, those of this version know it."""
    key = positions.BeatKey(A, B, 3)
    encoded = positions.encode_beat_key(key)
    assert encoded == bytes.fromhex("0000000000000000 00000003 0001 0001 61 62")
    assert positions.beat_key(encoded) == key
    with pytest.raises(ForeignKeyError):
        positions.decode_key(encoded)
    beat = positions.Beat(1_700_000_000_000, age_ms)
    assert positions.decode_beat(positions.encode_beat(beat)) == beat
    for other in (None, b"", positions.encode_key(BucketKey(A, B, DATA, 0)), b"\xff" * 30):
        assert positions.beat_key(other) is None


LAST_ERROR_KEY_HEX = "0000000000000001 00000000 0001 0001 61 62"
LAST_ERROR_HEX = "0801 1009 1a0178 220179"


def test_last_error_bytes():
    """H9, B10: readers of an earlier version pass it over as a foreign key."""
    key = positions.LastErrorKey(A, B)
    encoded = positions.encode_last_error_key(key)
    assert encoded == bytes.fromhex(LAST_ERROR_KEY_HEX)
    assert positions.last_error_key(encoded) == key
    with pytest.raises(ForeignKeyError):
        positions.decode_key(encoded)
    error = positions.LastError(9, "x", "y")
    assert positions.encode_last_error(error) == bytes.fromhex(LAST_ERROR_HEX)
    assert positions.decode_last_error(bytes.fromhex(LAST_ERROR_HEX)) == error


def test_keys_of_links_are_told_apart():
    """A beat, a last error, and a bucket; of another partition a last error is none."""
    beat = positions.encode_beat_key(positions.BeatKey(A, B, 0))
    error = positions.encode_last_error_key(positions.LastErrorKey(A, B))
    elsewhere = bytes.fromhex("0000000000000001 00000001 0001 0001 61 62")
    bucket = positions.encode_key(BucketKey(A, B, DATA, 1))
    assert (positions.beat_key(error), positions.last_error_key(beat)) == (None, None)
    for other in (None, b"", elsewhere, bucket, b"\xff" * 30):
        assert positions.last_error_key(other) is None
    assert [positions.is_of_link(it) for it in (beat, error, elsewhere, bucket)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_the_texts_of_a_last_error_are_safe_whoever_wrote_them(text: str):
    """H9: printable and short, when they are written and when they are read."""
    made = positions.last_error(9, 1000 * text, 1000 * text)
    assert positions.decode_last_error(positions.encode_last_error(made)) == made
    written = pb.LinkLastError(
        version=1,
        happened_ms=9,
        cause=1000 * text.encode(errors="replace").decode(),
        hint=text.encode(errors="replace").decode(),
    )
    for one in (made, positions.decode_last_error(written.SerializeToString())):
        assert is_harmless(one.cause)
        assert is_harmless(one.hint)
        assert len(one.cause) <= positions.TEXT_CHARS


@pytest.mark.parametrize("value", [None, b"\xff\xff", bytes.fromhex("0802")])
def test_a_last_error_that_nobody_can_read_is_none(value: bytes | None):
    """H9: a tombstone, garbage, or one of a later version: nothing depends on it."""
    assert positions.told_error(value) is None


def test_bucket_bytes():
    """H3: the key is (source, target, topic, partition, number)."""
    key = BucketKey(A, B, DATA, 0x102)
    key_hex = "0000000000000102 00000003 0001 0001 61 62 74"
    assert positions.encode_key(key) == bytes.fromhex(key_hex)
    assert positions.decode_key(bytes.fromhex(key_hex)) == key
    assert positions.encode_bucket(BUCKET) == bytes.fromhex(BUCKET_HEX)
    assert positions.decode_bucket(bytes.fromhex(BUCKET_HEX)) == BUCKET


@ROUND_TRIPS
@given(NAMES, NAMES, DATA_PARTITIONS, U64, ANY_CLAIMS)
def test_every_bucket_is_read_back(
    source: ClusterName, target: ClusterName, data: tuple[str, int], number: int, holes: Claims
):
    """Encoding loses nothing; names of any length are told apart."""
    key = BucketKey(source, target, positions.TopicPartition(*data), number)
    assert positions.decode_key(positions.encode_key(key)) == key
    bucket = BUCKET._replace(holes=holes)
    assert positions.decode_bucket(positions.encode_bucket(bucket)) == bucket


@pytest.mark.parametrize("key", [None, b"", b"x" * 17, b"\xff" * 30])
def test_a_key_of_no_bucket_is_an_error(key: bytes | None):
    """A link that cannot read its own positions copies nothing."""
    with pytest.raises(DecodeError):
        positions.decode_key(key)


@pytest.mark.parametrize(
    "value",
    [
        "ff",
        "0801 1201 00 1a080706050403020100",
        "0801 12080001020304050607 1a080706050403020100 2002 2801",
    ],
    ids=["garbage", "short incarnation", "descending"],
)
def test_a_value_of_no_bucket_is_an_error(value: str):
    """A bucket that ends before it begins translates nothing."""
    with pytest.raises(DecodeError):
        positions.decode_bucket(bytes.fromhex(value))
