"""Codec of replication-positions: a link's position in a data partition, and its offset index.

*Source*: docs/protocols H3, H5. Keys are packed by hand, because compaction compares their bytes:
bucket number u64, partition u32, lengths u16 of source and target, big-endian; then source, target
and topic in UTF-8. The key of a link's beat (I13) is that of a bucket 0 without a topic, with the
number of the positions partition; that of a link's last error (H9) is that of a bucket 1 without a
topic.

Refuses: unknown versions, and ranges that end before they begin.
"""

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from stilltide.schemas.errors import DecodeError, ForeignKeyError, shown
from stilltide.schemas.messages import FieldRule, Fields, checked
from stilltide.schemas.printable import printable
from stilltide.schemas.replication.origins import INCARNATION_BYTES, Claims, Incarnation
from stilltide.schemas.topics import key_place
from stilltide.schemas.v1 import replication_pb2 as pb
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range, Ranges, TopicPartition

_KEY = struct.Struct(">QIHH")
_BEAT_NUMBER, _LAST_ERROR_NUMBER = 0, 1

LAST_ERRORS_PARTITION = 0
"""A link has one last error, however many partitions of replication-positions it writes to."""

TEXT_CHARS = 500
"""Letters of a text for people in a record; what is longer is cut."""


class BucketKey(NamedTuple):
    """Key of a bucket; numbers are 0, 1, ... and never used again."""

    source: ClusterName
    target: ClusterName
    data: TopicPartition
    number: int


class BeatKey(NamedTuple):
    """Key of a link's beat on one partition of replication-positions."""

    source: ClusterName
    target: ClusterName
    partition: int


class Beat(NamedTuple):
    """A sign that a link runs (I13).

    Attributes:
        written_ms: wall clock of the link.
        heard_age_ms: age of the newest beat of the link back, as read on the source; None: there
            was none.
    """

    written_ms: int
    heard_age_ms: int | None


class LastErrorKey(NamedTuple):
    """Key of a link's last error, which is in `LAST_ERRORS_PARTITION` of replication-positions."""

    source: ClusterName
    target: ClusterName


class LastError(NamedTuple):
    """The last error of a link, for people (H9); `last_error` makes one.

    Attributes:
        happened_ms: wall clock of the link.
        cause: place and cause; printable, at most `TEXT_CHARS` letters.
        hint: the next step, as printable and short; may be empty.
    """

    happened_ms: int
    cause: str
    hint: str


PositionsKey = BucketKey | BeatKey | LastErrorKey
"""What a record of replication-positions is about."""


class Bucket(NamedTuple):
    """A mapping: local records of the source range have their copies in the target range, in order.

    Attributes:
        source_incarnation: incarnation of the topic on the source, 8 bytes.
        target_incarnation: incarnation of the topic on the target, 8 bytes.
        source_from: first offset of the source range.
        source_to: end offset of the source range.
        target_from: first offset of the target range.
        target_to: end offset of the target range.
        holes: records that left the source's log uncopied, including those below `source_from`.
    """

    source_incarnation: bytes
    target_incarnation: bytes
    source_from: Offset
    source_to: EndOffset
    target_from: Offset
    target_to: EndOffset
    holes: Claims


PositionsValue = Bucket | Beat | LastError | None
"""What a record of replication-positions says; None: its key is deleted."""

PositionsItem = tuple[PositionsKey, PositionsValue]


def encode_key(key: BucketKey) -> bytes:
    """Key of a bucket."""
    source, target = key.source.encode(), key.target.encode()
    fixed = _KEY.pack(key.number, key.data.partition, len(source), len(target))
    return fixed + source + target + key.data.topic.encode()


def decode_key(key: bytes | None) -> BucketKey:
    """The bucket that a key names.

    Raises:
        ForeignKeyError: not a key of this topic.
    """
    if key is not None and len(key) > _KEY.size:
        number, partition, source, target = _KEY.unpack_from(key)
        names = key[_KEY.size :]
        if len(names) > source + target and source and target:
            try:
                return BucketKey(
                    ClusterName(names[:source].decode()),
                    ClusterName(names[source : source + target].decode()),
                    key_place(names[source + target :], partition),
                    number,
                )
            except UnicodeDecodeError as error:
                raise ForeignKeyError(
                    "a bucket of names not in UTF-8", detail=str(error)
                ) from error
    raise ForeignKeyError(f"key {shown(key)} is not that of a bucket")


def key_of(key: bytes | None) -> PositionsKey:
    """What a record is about; raises `ForeignKeyError` for a key that is not of this topic."""
    return beat_key(key) or last_error_key(key) or decode_key(key)


def value_of(key: PositionsKey, value: bytes | None) -> PositionsValue:
    """The value of a record; None: the key is deleted, or is of an error that nobody can read.

    Raises:
        DecodeError: not a value of this key.
    """
    if value is None:
        return None
    match key:
        case BucketKey():
            return decode_bucket(value)
        case BeatKey():
            return decode_beat(value)
        case LastErrorKey():
            return told_error(value)


def is_of_link(key: bytes | None) -> bool:
    """Whether a key names a record about a link as a whole: it is no bucket."""
    return _decode_link(key, _BEAT_NUMBER) is not None or last_error_key(key) is not None


def encode_beat_key(key: BeatKey) -> bytes:
    """Key of a beat."""
    return _encode_link(key.source, key.target, key.partition, _BEAT_NUMBER)


def beat_key(key: bytes | None) -> BeatKey | None:
    """The beat that a key names; None: it is no key of a beat."""
    link = _decode_link(key, _BEAT_NUMBER)
    return None if link is None else BeatKey(*link)


_BEAT_FIELDS = Fields(Beat, pb.LinkBeat, "a beat of a link")
encode_beat, decode_beat = _BEAT_FIELDS.encode, _BEAT_FIELDS.decode
"""The value of a beat; `decode_beat` raises `DecodeError` for other bytes."""


def last_error(happened_ms: int, cause: str, hint: str) -> LastError:
    """A last error whose texts are safe to show and to keep, whatever they were made of."""
    return LastError(happened_ms, printable(cause)[:TEXT_CHARS], printable(hint)[:TEXT_CHARS])


def encode_last_error_key(key: LastErrorKey) -> bytes:
    """Key of a link's last error."""
    return _encode_link(key.source, key.target, LAST_ERRORS_PARTITION, _LAST_ERROR_NUMBER)


_LAST_ERROR_FIELDS = Fields(LastError, pb.LinkLastError, "the last error of a link")
encode_last_error = _LAST_ERROR_FIELDS.encode
"""Value of a link's last error."""


def last_error_key(key: bytes | None) -> LastErrorKey | None:
    """The link whose last error a key names; None: it is no such key."""
    link = _decode_link(key, _LAST_ERROR_NUMBER)
    if link is None or link[2] != LAST_ERRORS_PARTITION:
        return None
    return LastErrorKey(*link[:2])


def decode_last_error(value: bytes) -> LastError:
    """The last error of a link, safe to show, also if a stranger wrote it.

    Raises:
        UnknownVersionError: a later version wrote it.
        DecodeError: not an error of a link.
    """
    return last_error(*_LAST_ERROR_FIELDS.decode(value))


def told_error(value: bytes | None) -> LastError | None:
    """The last error in a record's value; None: a tombstone, or one that nobody can read.

    Nothing depends on it, so that a damaged one ends no reader.
    """
    try:
        return None if value is None else decode_last_error(value)
    except DecodeError:
        return None


def _encode_link(source: ClusterName, target: ClusterName, partition: int, number: int) -> bytes:
    names = source.encode(), target.encode()
    return _KEY.pack(number, partition, *map(len, names)) + b"".join(names)


def _decode_link(key: bytes | None, number: int) -> tuple[ClusterName, ClusterName, int] | None:
    """Source, target and partition of a key with this number and without a topic; None: another."""
    if key is None or len(key) <= _KEY.size:
        return None
    key_number, partition, source, target = _KEY.unpack_from(key)
    names = key[_KEY.size :]
    if key_number != number or not source or not target or len(names) != source + target:
        return None
    try:
        decoded = names[:source].decode(), names[source:].decode()
    except UnicodeDecodeError:
        return None
    return ClusterName(decoded[0]), ClusterName(decoded[1]), partition


def checked_incarnation(incarnation: bytes) -> bytes:
    """The same bytes; raises `DecodeError` if they have not the length of an incarnation."""
    if len(incarnation) != INCARNATION_BYTES:
        raise DecodeError(f"an incarnation has {INCARNATION_BYTES} bytes, not {len(incarnation)}")
    return incarnation


def encode_claims(claims: Claims) -> list[pb.IncarnationOffsets]:
    """Messages for claims, in the order of incarnations, so that equal claims have equal bytes."""
    return [
        pb.IncarnationOffsets(
            cluster=incarnation.cluster,
            incarnation=incarnation.topic,
            bounds=[bound for interval in intervals for bound in interval],
        )
        for incarnation, intervals in sorted(claims.items())
    ]


def decode_claims(messages: Iterable[pb.IncarnationOffsets]) -> dict[Incarnation, Ranges]:
    """The claims in such messages.

    Raises:
        DecodeError: intervals that do not ascend, or an incarnation twice.
    """
    claims: dict[Incarnation, Ranges] = {}
    for message in messages:
        incarnation = Incarnation(
            ClusterName(message.cluster), checked_incarnation(message.incarnation)
        )
        bounds = list(message.bounds)
        ascending = all(low < high for low, high in pairwise(bounds))
        if incarnation in claims or not bounds or len(bounds) % 2 or not ascending:
            raise DecodeError(f"offsets {bounds} of {incarnation} are not intervals")
        claims[incarnation] = tuple(
            Range(Offset(first), EndOffset(end))
            for first, end in zip(bounds[::2], bounds[1::2], strict=True)
        )
    return claims


CLAIMS = FieldRule(encode_claims, decode_claims)
INCARNATION = checked(checked_incarnation)
_BUCKET_FIELDS = Fields(
    Bucket,
    pb.OffsetBucket,
    "a bucket of the offset index",
    source_incarnation=INCARNATION,
    target_incarnation=INCARNATION,
    holes=CLAIMS,
)
encode_bucket = _BUCKET_FIELDS.encode
"""Value of a bucket."""


def decode_bucket(value: bytes) -> Bucket:
    """A bucket.

    Raises:
        UnknownVersionError: a later version wrote the bucket.
        DecodeError: not a bucket.
    """
    bucket = _BUCKET_FIELDS.decode(value)
    if bucket.source_from > bucket.source_to or bucket.target_from > bucket.target_to:
        raise DecodeError("a bucket that ends before it begins")
    return bucket
