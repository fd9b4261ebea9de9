"""Bytes of aborted-index (F3): the key's bytes decide what compaction keeps."""

from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from stilltide.schemas.errors import DecodeError, UnknownVersionError
from stilltide.schemas.native import aborted_index
from stilltide.schemas.native.aborted_index import Coverage, CoverageKey, IndexRun, RunKey
from stilltide.schemas.values import OFFSET_MAX, Range, TopicPartition
from tests.support.schemas.wire import DATA, DATA_PARTITIONS, IDS, ROUND_TRIPS, TOPIC_ID, U64

RUN_KEY = "72 00000003 0000000000000102 74"
COVERAGE_KEY = "63 00000003 74"
RANGES = (Range(300, 310), Range(310, 311), Range(500, 800))
RUN_HEX = "0801 1210000102030405060708090a0b0c0d0e0f 1a04 0000bd01 2204 0a01ac02"
COVERAGE = Coverage(TOPIC_ID, 5, 300, 301, 2, 3)
COVERAGE_HEX = "0801 1210000102030405060708090a0b0c0d0e0f 1805 20ac02 28ad02 3002 3803"

OFFSETS = st.integers(0, OFFSET_MAX)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[Range, ...]:
    """Ascending ranges, some of them touching."""
    count = draw(st.integers(1, 5))
    ends = sorted(draw(st.sets(OFFSETS, min_size=count + 1, max_size=count + 1)))
    return tuple(
        Range(draw(st.integers(before, after - 1)), after) for before, after in pairwise(ends)
    )


def test_key_bytes():
    """Kind, partition and first offset big-endian, topic in UTF-8; each is read back."""
    assert aborted_index.run_key(DATA, 0x102) == bytes.fromhex(RUN_KEY)
    assert aborted_index.coverage_key(DATA) == bytes.fromhex(COVERAGE_KEY)
    assert aborted_index.decode_key(bytes.fromhex(RUN_KEY)) == RunKey(DATA, 0x102)
    assert aborted_index.decode_key(bytes.fromhex(COVERAGE_KEY)) == CoverageKey(DATA)


@ROUND_TRIPS
@given(DATA_PARTITIONS, DATA_PARTITIONS, U64, U64)
def test_keys_are_equal_only_for_the_same_thing(
    one: TopicPartition, other: TopicPartition, first: int, another: int
):
    """Compaction never lets a run replace another one, or a coverage."""
    keys = {
        RunKey(one, first): aborted_index.run_key(one, first),
        RunKey(other, another): aborted_index.run_key(other, another),
        CoverageKey(one): aborted_index.coverage_key(one),
        CoverageKey(other): aborted_index.coverage_key(other),
    }
    assert len(set(keys.values())) == len(keys)
    for key, data in keys.items():
        found = aborted_index.decode_key(data)
        assert (type(found), found) == (type(key), key)


def test_run_bytes():
    """Gaps and lengths, packed; the first offset is in the key alone."""
    assert aborted_index.encode_run(TOPIC_ID, RANGES) == bytes.fromhex(RUN_HEX)
    assert aborted_index.decode_run(300, bytes.fromhex(RUN_HEX)) == IndexRun(TOPIC_ID, RANGES)


def test_coverage_bytes():
    """Topic id, positions and counts."""
    assert aborted_index.encode_coverage(COVERAGE) == bytes.fromhex(COVERAGE_HEX)
    assert aborted_index.decode_coverage(bytes.fromhex(COVERAGE_HEX)) == COVERAGE


@ROUND_TRIPS
@given(IDS, ranges(), st.lists(OFFSETS, min_size=3, max_size=3).map(sorted), U64, U64)
def test_everything_is_read_back(
    topic_id: bytes,
    run: tuple[Range, ...],
    positions: list[int],
    run_count: int,
    range_count: int,
):
    """Encoding loses nothing; ranges that touch stay apart."""
    value = aborted_index.encode_run(topic_id, run)
    assert aborted_index.decode_run(run[0].first, value) == IndexRun(topic_id, run)
    coverage = Coverage(topic_id, *positions, run_count, range_count)
    assert aborted_index.decode_coverage(aborted_index.encode_coverage(coverage)) == coverage


@pytest.mark.parametrize(
    "key",
    [None, "", "72 00000003 0000000000000102", "63 00000003", "78 00000003 74", "6300000003ff"],
    ids=["none", "empty", "no topic in run", "no topic in coverage", "other kind", "not UTF-8"],
)
def test_what_is_no_key_is_an_error(key: str | None):
    """A record that cannot be understood is refused, never skipped."""
    with pytest.raises(DecodeError):
        aborted_index.decode_key(None if key is None else bytes.fromhex(key))


def test_a_later_version_is_refused():
    """What a newer program wrote is never guessed at; the hint is to upgrade."""
    for decode in (lambda it: aborted_index.decode_run(0, it), aborted_index.decode_coverage):
        with pytest.raises(UnknownVersionError, match="version 2") as caught:
            decode(bytes.fromhex("0802"))
        assert "upgrade" in caught.value.hint


@pytest.mark.parametrize(
    "value",
    [
        "ff",
        RUN_HEX[:-2],
        "0801",
        "0801 1a0100 220100",
        "0801 1a0101 220101",
        "0801 1a020000 220101",
    ],
    ids=["garbage", "truncated", "no ranges", "empty range", "not at its key", "uneven"],
)
def test_what_is_no_run_is_an_error(value: str):
    """Bytes that no writer makes are refused."""
    with pytest.raises(DecodeError):
        aborted_index.decode_run(0, bytes.fromhex(value))


def test_a_run_beyond_every_offset_is_an_error():
    """Lengths that only corruption gives do not become offsets."""
    value = aborted_index.encode_run(TOPIC_ID, [Range(0, OFFSET_MAX)])
    with pytest.raises(DecodeError, match="beyond every offset"):
        aborted_index.decode_run(1, value)


@pytest.mark.parametrize("value", ["ff", COVERAGE_HEX[:-2], "0801 1805 2004"])
def test_what_is_no_coverage_is_an_error(value: str):
    """Also one that ends before it begins."""
    with pytest.raises(DecodeError):
        aborted_index.decode_coverage(bytes.fromhex(value))
