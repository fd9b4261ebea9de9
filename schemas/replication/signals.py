"""Codec of replication-markers: signals between the controllers of clusters.

*Source*: docs/protocols I, Layout. Keys are packed by hand, because compaction compares their
bytes: kind (one byte), partition u32, lengths u16 of source, target and topic, big-endian; then
source, target, topic and group in UTF-8. Target and group may be empty. Links copy `request` (q),
`response` (a) and `update` (u); `snapshots` (s) and `applied` (d) stay on their cluster.

Refuses: unknown versions.
"""

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from stilltide.schemas.errors import DecodeError, ForeignKeyError, shown
from stilltide.schemas.messages import FieldRule, Fields, checked
from stilltide.schemas.replication.origins import Claims, Incarnation
from stilltide.schemas.replication.positions import CLAIMS, INCARNATION
from stilltide.schemas.topics import key_place
from stilltide.schemas.v1 import replication_pb2 as pb
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition

_KEY = struct.Struct(">cIHHH")
_ID_BYTES = 16


class RequestKey(NamedTuple):
    """Key of a cluster's request for a data partition, of which the last one counts."""

    data: TopicPartition
    source: ClusterName


class ResponseKey(NamedTuple):
    """Key of the answer of a cluster, `source`, to the request of another one, `target`."""

    data: TopicPartition
    source: ClusterName
    target: ClusterName


class SnapshotsKey(NamedTuple):
    """Key of a cluster's position snapshots of a data partition."""

    data: TopicPartition
    source: ClusterName


class UpdateKey(NamedTuple):
    """Key of a cluster's update about a group."""

    data: TopicPartition
    source: ClusterName
    group: str


class AppliedKey(NamedTuple):
    """Key of a cluster's own state of a group."""

    data: TopicPartition
    source: ClusterName
    group: str


SignalKey = RequestKey | ResponseKey | SnapshotsKey | UpdateKey | AppliedKey


class PositionSnapshotRequest(NamedTuple):
    """A request of an attempt to make a position snapshot (I1).

    Attributes:
        id: id of the attempt, 16 bytes.
        round: round of the attempt, from 1.
        incarnation: incarnation of the topic on the asking cluster.
        decided_end: decided end on the asking cluster; a link copies the request after passing it.
    """

    id: bytes
    round: int
    incarnation: bytes
    decided_end: EndOffset


class PositionSnapshotResponse(NamedTuple):
    """The answer to a request; incarnation and decided end are of the answering cluster (I2)."""

    id: bytes
    round: int
    incarnation: bytes
    decided_end: EndOffset


class Position(NamedTuple):
    """An end offset of an incarnation."""

    incarnation: Incarnation
    end_offset: EndOffset


class PositionSnapshot(NamedTuple):
    """A position snapshot: a group past `local_end` here is past `positions` elsewhere (I3).

    Attributes:
        id: id of the attempt.
        local_end: end offset on this cluster.
        positions: position on each other cluster.
        started_ms: wall clock at the first request.
        completed_ms: wall clock at the last answer.
    """

    id: bytes
    local_end: EndOffset
    positions: tuple[Position, ...]
    started_ms: int
    completed_ms: int


class PositionSnapshots(NamedTuple):
    """All cached position snapshots of a data partition (I5).

    Attributes:
        incarnation: incarnation of the topic on this cluster.
        started_at: decided end when the attempt of the newest one began.
        snapshots: position snapshots, by ascending local end.
    """

    incarnation: bytes
    started_at: EndOffset
    snapshots: tuple[PositionSnapshot, ...]


class Update(NamedTuple):
    """An update of one cluster: the records that a group has read (I6).

    Attributes:
        generation: generation of the last replicated reset (I10).
        incarnation: incarnation of the topic on the writing cluster.
        offset: offset that the group has committed there; None: none.
        claims: records that the group has read, as far as the writing cluster knows.
        positions: positions that the group has passed, in mode `snapshot` instead of claims (I12).
        snapshot_id: id of the position snapshot with these positions, else empty.
    """

    generation: int
    incarnation: bytes
    offset: Offset | None
    claims: Claims
    positions: tuple[Position, ...] = ()
    snapshot_id: bytes = b""


class Applied(NamedTuple):
    """A controller's state of a group on its cluster (I7, I9, I10).

    Attributes:
        generation: generation that was applied.
        incarnation: incarnation of the topic on this cluster.
        offset: highest committed offset that was seen or applied; None: none.
        applied_offset: offset to which the controller moved the group; None once it has moved on.
        until: offset that the group must pass first after a reset by hand; None: none.
        lost: records that left the log before the group could read them.
    """

    generation: int
    incarnation: bytes
    offset: Offset | None
    applied_offset: Offset | None
    until: Offset | None
    lost: Claims


SignalValue = (
    PositionSnapshotRequest | PositionSnapshotResponse | PositionSnapshots | Update | Applied
)

_REQUEST, _RESPONSE, _SNAPSHOTS, _UPDATE, _APPLIED = b"q", b"a", b"s", b"u", b"d"
_CODES: dict[type[SignalKey], bytes] = {
    RequestKey: _REQUEST,
    ResponseKey: _RESPONSE,
    SnapshotsKey: _SNAPSHOTS,
    UpdateKey: _UPDATE,
    AppliedKey: _APPLIED,
}


def encode_key(key: SignalKey) -> bytes:
    """Key of a signal."""
    target = key.target if isinstance(key, ResponseKey) else ""
    group = key.group if isinstance(key, UpdateKey | AppliedKey) else ""
    names = [name.encode() for name in (key.source, target, key.data.topic)]
    fixed = _KEY.pack(_CODES[type(key)], key.data.partition, *map(len, names))
    return fixed + b"".join(names) + group.encode()


def decode_key(key: bytes | None) -> SignalKey:
    """The signal that a key names.

    Raises:
        ForeignKeyError: not a key of this topic.
    """
    if key is not None and len(key) > _KEY.size and key[:1] in _CODES.values():
        code, partition, *lengths = _KEY.unpack_from(key)
        try:
            source, target, topic, group = _names(key[_KEY.size :], lengths)
        except UnicodeDecodeError as error:
            raise ForeignKeyError("a signal of names not in UTF-8", detail=str(error)) from error
        data = key_place(topic.encode(), partition)
        signal = _key(code, data, ClusterName(source), target, group)
        if signal is not None and encode_key(signal) == key:
            return signal
    raise ForeignKeyError(f"key {shown(key)} is not that of a signal")


def _key(
    code: bytes, data: TopicPartition, source: ClusterName, target: str, group: str
) -> SignalKey | None:
    if not data.topic or not source:
        return None
    if code == _RESPONSE:
        return ResponseKey(data, source, ClusterName(target)) if target else None
    if code == _UPDATE:
        return UpdateKey(data, source, group)
    if code == _APPLIED:
        return AppliedKey(data, source, group)
    return RequestKey(data, source) if code == _REQUEST else SnapshotsKey(data, source)


def _names(data: bytes, lengths: Iterable[int]) -> list[str]:
    names: list[str] = []
    at = 0
    for length in lengths:
        names.append(data[at : at + length].decode())
        at += length
    return [*names, data[at:].decode()]


def encode_value(value: SignalValue) -> bytes:
    """Value of a signal; equal signals have equal bytes."""
    return _FIELDS[type(value)].encode(value)


def decode(key: bytes | None, value: bytes | None) -> tuple[SignalKey, SignalValue | None]:
    """A record of replication-markers; the value is None for a tombstone.

    Raises:
        UnknownVersionError: a later version wrote the signal.
        DecodeError: not a signal.
    """
    signal = decode_key(key)
    if value is None:
        return signal, None
    return signal, _FIELDS[_VALUES[type(signal)]].decode(value)


def _checked_id(attempt: bytes) -> bytes:
    if len(attempt) != _ID_BYTES:
        raise DecodeError(f"the id of a snapshot has {_ID_BYTES} bytes, not {len(attempt)}")
    return attempt


_ID = checked(_checked_id)
_POSITION = Fields(
    Position,
    pb.ClusterPosition,
    incarnation=Fields(
        Incarnation, pb.ClusterPosition, topic=INCARNATION._replace(name="incarnation")
    ),
)


def _fields(
    value: type[SignalValue], message: type[Message], **own: FieldRule | Fields[Any, Any]
) -> Fields[Any, Any]:
    return Fields(value, message, "a signal", incarnation=INCARNATION, **own)


_VALUES: dict[type[SignalKey], type[SignalValue]] = {
    RequestKey: PositionSnapshotRequest,
    ResponseKey: PositionSnapshotResponse,
    SnapshotsKey: PositionSnapshots,
    UpdateKey: Update,
    AppliedKey: Applied,
}
_FIELDS: dict[type[SignalValue], Fields[Any, Any]] = {
    PositionSnapshotRequest: _fields(
        PositionSnapshotRequest, pb.ReplicationSnapshotRequest, id=_ID
    ),
    PositionSnapshotResponse: _fields(
        PositionSnapshotResponse, pb.ReplicationSnapshotResponse, id=_ID
    ),
    PositionSnapshots: _fields(
        PositionSnapshots,
        pb.ReplicationSnapshots,
        snapshots=Fields(PositionSnapshot, pb.ReplicationSnapshot, id=_ID, positions=_POSITION),
    ),
    Update: _fields(Update, pb.SubscriptionUpdate, claims=CLAIMS, positions=_POSITION),
    Applied: _fields(Applied, pb.SubscriptionApplied, lost=CLAIMS),
}
