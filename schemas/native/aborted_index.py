"""Codec of aborted-index: ranges of aborted native batches of a data partition, and their coverage.

*Source*: docs/protocols F3, F4, E8. Keys are packed by hand, because compaction compares their
bytes: kind `r` (a run of ranges), partition u32, first offset u64, topic in UTF-8; kind `c`
(coverage), partition u32, topic. Numbers are big-endian.

*Invariants*: a run holds ranges `[first, end)` that ascend and do not overlap; the coverage
contains the numbers of runs and ranges, so that a missing one is detected.

Refuses: unknown versions, and ranges that no writer makes.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.schemas.errors import DecodeError, ForeignKeyError, shown
from stilltide.schemas.messages import VERSION, Fields, parsed
from stilltide.schemas.topics import key_place
from stilltide.schemas.v1 import aborted_index_pb2 as pb
from stilltide.schemas.values import OFFSET_MAX, EndOffset, Offset, Range, TopicPartition

_RUN = struct.Struct(">cIQ")
_COVERAGE = struct.Struct(">cI")
_RUN_KIND = b"r"
_COVERAGE_KIND = b"c"


class RunKey(NamedTuple):
    """Key of a run of ranges; `first` is the first offset of the run's first range."""

    data: TopicPartition
    first: Offset


class CoverageKey(NamedTuple):
    """Key of a data partition's coverage."""

    data: TopicPartition


IndexKey = RunKey | CoverageKey


class IndexRun(NamedTuple):
    """Consecutive aborted ranges, at least one.

    Attributes:
        topic_id: Kafka topic id to which the offsets belong.
        ranges: aborted ranges, ascending and disjoint.
    """

    topic_id: bytes
    ranges: tuple[Range, ...]


class Coverage(NamedTuple):
    """How far the index of a data partition goes (F4).

    Attributes:
        topic_id: Kafka topic id to which the offsets belong.
        covered_from: log start when the index was written; ranges below may be missing.
        covered_to: end offset up to which every aborted batch is in a range.
        last_stable_offset: last stable offset when the index was written.
        run_count: number of runs.
        range_count: number of ranges in all runs.
    """

    topic_id: bytes
    covered_from: Offset
    covered_to: EndOffset
    last_stable_offset: EndOffset
    run_count: int
    range_count: int


def run_key(data: TopicPartition, first: Offset) -> bytes:
    """Key of the run that begins at an offset."""
    return _RUN.pack(_RUN_KIND, data.partition, first) + data.topic.encode()


def coverage_key(data: TopicPartition) -> bytes:
    """Key of a data partition's coverage."""
    return _COVERAGE.pack(_COVERAGE_KIND, data.partition) + data.topic.encode()


def decode_key(key: bytes | None) -> IndexKey:
    """The run or coverage that a key names.

    Raises:
        ForeignKeyError: not a key of this topic.
    """
    if key is not None and key[:1] == _RUN_KIND and len(key) > _RUN.size:
        _, partition, first = _RUN.unpack_from(key)
        return RunKey(key_place(key[_RUN.size :], partition), Offset(first))
    if key is not None and key[:1] == _COVERAGE_KIND and len(key) > _COVERAGE.size:
        partition = _COVERAGE.unpack_from(key)[1]
        return CoverageKey(key_place(key[_COVERAGE.size :], partition))
    raise ForeignKeyError(
        f"key {shown(key)} is neither that of aborted ranges nor that of their coverage"
    )


def encode_run(topic_id: bytes, ranges: Sequence[Range]) -> bytes:
    """Value of a run of ranges, whose key has the first offset of the first range."""
    assert ranges
    gaps: list[int] = []
    end = int(ranges[0].first)
    for aborted in ranges:
        assert end <= aborted.first < aborted.end, "ranges ascend, and none is empty"
        gaps.append(aborted.first - end)
        end = aborted.end
    lengths = [aborted.end - aborted.first for aborted in ranges]
    return pb.AbortedRanges(
        version=VERSION, topic_id=topic_id, gaps=gaps, lengths=lengths
    ).SerializeToString()


def decode_run(first: Offset, value: bytes) -> IndexRun:
    """A run of ranges.

    Args:
        first: first offset in the record's key.
        value: value of the record.

    Raises:
        UnknownVersionError: a later version wrote the run.
        DecodeError: not a run.
    """
    body = parsed(pb.AbortedRanges, value, "a run of aborted ranges")
    if not body.gaps or len(body.gaps) != len(body.lengths) or body.gaps[0] or 0 in body.lengths:
        raise DecodeError("a run of aborted ranges without ranges, or with empty ones")
    ranges: list[Range] = []
    end = int(first)
    for gap, length in zip(body.gaps, body.lengths, strict=True):
        begin = end + gap
        end = begin + length
        ranges.append(Range(Offset(begin), EndOffset(end)))
    if end > OFFSET_MAX:
        raise DecodeError(f"an aborted range ends at {end}, beyond every offset")
    return IndexRun(body.topic_id, tuple(ranges))


_COVERAGE_FIELDS = Fields(Coverage, pb.Coverage, "the coverage of an index")
encode_coverage = _COVERAGE_FIELDS.encode
"""Value of a data partition's coverage."""


def decode_coverage(value: bytes) -> Coverage:
    """A data partition's coverage.

    Raises:
        UnknownVersionError: a later version wrote the coverage.
        DecodeError: not a coverage, or one that ends before it begins.
    """
    coverage = _COVERAGE_FIELDS.decode(value)
    if not coverage.covered_from <= coverage.covered_to <= OFFSET_MAX:
        raise DecodeError(f"coverage from {coverage.covered_from} to {coverage.covered_to}")
    return coverage
