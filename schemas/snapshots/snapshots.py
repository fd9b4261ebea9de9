"""Codec of txn-snapshots: the aborted transactions of a data partition, in parts and an end.

*Source*: docs/protocols E2, E3, E5, E8. Keys are packed by hand, because compaction compares their
bytes: kind `p` (part), partition u32, number u64, topic in UTF-8; kind `e` (end), partition u32,
topic; `*` alone. Numbers are big-endian.

*Invariants*: an end names its sealed parts with a checksum over key and value, so that a part that
was truncated, exchanged, or belongs to another topic is never used.

Refuses: unknown versions, and sequences that no coordinator gives.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from stilltide.schemas.errors import DecodeError, ForeignKeyError, shown
from stilltide.schemas.messages import VERSION, FieldRule, Fields, parsed
from stilltide.schemas.topics import key_place
from stilltide.schemas.v1 import snapshots_pb2 as pb
from stilltide.schemas.values import SEQUENCE_MAX, EndOffset, TopicPartition

_PART = struct.Struct(">cIQ")
_END = struct.Struct(">cI")
_PART_KIND = b"p"
_END_KIND = b"e"
STAR_KEY = b"*"

AbortedIds = Mapping[int, Sequence[int]]
"""Aborted transactions: coordinator to sequences, in the order of their markers."""

Floors = Mapping[int, int]
"""For each coordinator the sequence below which no transaction has a record left."""


class PartKey(NamedTuple):
    """Key of a sealed part; numbers are 1, 2, ... and never used again (E2)."""

    data: TopicPartition
    number: int


class EndKey(NamedTuple):
    """Key of a snapshot's end."""

    data: TopicPartition


class StarKey(NamedTuple):
    """Key of the record that concerns all data partitions (E3)."""


SnapshotKey = PartKey | EndKey | StarKey


class TrimPair(NamedTuple):
    """Floors that are valid once the log start has reached `end_offset` (E5)."""

    end_offset: EndOffset
    floors: Floors


class SnapshotEnd(NamedTuple):
    """The record that completes a snapshot: its positions, and the names of its parts (E2).

    Attributes:
        topic_id: Kafka topic id to which the offsets belong (E8).
        max_read_position: M, the offset below which every transaction has ended.
        markers_covered_to: K, the offset of the first marker that is not absorbed.
        first_part: number of the first sealed part, or of the next one if there is none.
        part_checksums: checksums of the sealed parts, from the first on.
        unsealed: aborted transactions that no sealed part holds.
        floors: floors that are valid now.
        floors_valid_from: F, an offset below which no record is left.
        pairs: floors that become valid later, by end offset.
    """

    topic_id: bytes
    max_read_position: EndOffset
    markers_covered_to: EndOffset
    first_part: int
    part_checksums: tuple[int, ...]
    unsealed: AbortedIds
    floors: Floors
    floors_valid_from: EndOffset
    pairs: tuple[TrimPair, ...]


class SnapshotStar(NamedTuple):
    """A snapshot writer's record for all of its data partitions.

    Attributes:
        markers_covered_to: K*, the offset of the first marker that the snapshot of the marker's
            data partition has not absorbed.
        floors: floors of data partitions without a snapshot (E8).
    """

    markers_covered_to: EndOffset
    floors: Floors


def part_key(data: TopicPartition, number: int) -> bytes:
    """Key of a sealed part."""
    return _PART.pack(_PART_KIND, data.partition, number) + data.topic.encode()


def end_key(data: TopicPartition) -> bytes:
    """Key of a snapshot's end."""
    return _END.pack(_END_KIND, data.partition) + data.topic.encode()


def decode_key(key: bytes | None) -> SnapshotKey:
    """The part, end or star that a key names.

    Raises:
        ForeignKeyError: not a key of this topic.
    """
    if key == STAR_KEY:
        return StarKey()
    if key is not None and key[:1] == _PART_KIND and len(key) > _PART.size:
        _, partition, number = _PART.unpack_from(key)
        return PartKey(key_place(key[_PART.size :], partition), number)
    if key is not None and key[:1] == _END_KIND and len(key) > _END.size:
        partition = _END.unpack_from(key)[1]
        return EndKey(key_place(key[_END.size :], partition))
    raise ForeignKeyError(f"key {shown(key)} is not that of a part, an end, or `*`")


def checksum(key: bytes, value: bytes) -> int:
    """CRC-32 of the key and value of a sealed part, which its end contains."""
    return zlib.crc32(value, zlib.crc32(key))


def id_bytes(sequence: int, before: int) -> int:
    """How many bytes a sequence takes after the sequence `before` of the same coordinator."""
    delta = sequence - before
    zigzag = 2 * delta if delta >= 0 else -2 * delta - 1
    return max(1, (zigzag.bit_length() + 6) // 7)


COORDINATOR_BYTES_MAX = 1 + 5 + 1 + 10 + 1 + 5
"""Most bytes of a coordinator's ids without the sequences: two fields in one, and lengths."""


def encode_part(aborted: AbortedIds) -> bytes:
    """Value of a sealed part."""
    return pb.SnapshotPart(version=VERSION, aborted=_aborted_pb(aborted)).SerializeToString()


def decode_part(value: bytes) -> dict[int, list[int]]:
    """The aborted transactions of a sealed part; 0.1 us for each.

    Raises:
        UnknownVersionError: a later version wrote the part.
        DecodeError: not a part.
    """
    return _aborted(parsed(pb.SnapshotPart, value, "the part of a snapshot").aborted)


def _aborted_pb(aborted: AbortedIds) -> Iterable[pb.AbortedSequences]:
    for coordinator, sequences in aborted.items():
        assert max(sequences, default=0) <= SEQUENCE_MAX
        deltas = (after - before for before, after in pairwise(chain((0,), sequences)))
        yield pb.AbortedSequences(coordinator=coordinator, sequence_deltas=deltas)


def _aborted(messages: Iterable[pb.AbortedSequences]) -> dict[int, list[int]]:
    """Sums up the packed differences, without making an object for each id."""
    aborted: dict[int, list[int]] = {}
    for message in messages:
        sequences = list(accumulate(message.sequence_deltas))
        if message.coordinator in aborted or not sequences:
            raise DecodeError(f"coordinator {message.coordinator} is there twice, or without ids")
        if min(sequences) < 0 or max(sequences) > SEQUENCE_MAX:
            raise DecodeError(f"a sequence of coordinator {message.coordinator} is out of range")
        aborted[message.coordinator] = sequences
    return aborted


def _floors_pb(floors: Floors) -> Iterable[pb.SequenceFloor]:
    for coordinator, sequence in sorted(floors.items()):
        yield pb.SequenceFloor(coordinator=coordinator, sequence=sequence)


def _floors(messages: Iterable[pb.SequenceFloor]) -> dict[int, int]:
    return {message.coordinator: message.sequence for message in messages}


_FLOORS = FieldRule(_floors_pb, _floors)
_END_FIELDS = Fields(
    SnapshotEnd,
    pb.SnapshotEnd,
    "the end of a snapshot",
    unsealed=FieldRule(_aborted_pb, _aborted),
    floors=_FLOORS,
    pairs=Fields(TrimPair, pb.TrimPair, floors=_FLOORS),
)
_STAR_FIELDS = Fields(SnapshotStar, pb.SnapshotStar, "the star of a snapshot", floors=_FLOORS)
encode_end, decode_end = _END_FIELDS.encode, _END_FIELDS.decode
"""The value of a snapshot's end; `decode_end` raises `DecodeError` for other bytes."""
encode_star, decode_star = _STAR_FIELDS.encode, _STAR_FIELDS.decode
"""The value of the record under `*`; `decode_star` raises `DecodeError` for other bytes."""
