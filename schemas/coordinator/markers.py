"""Codec of txn-markers: the outcome of one transaction on one data partition; and barriers.

A barrier holds a coordinator's open transactions after a probe arrived.

*Source*: docs/protocols D, E1. Keys are packed by hand, because compaction compares the bytes of
keys, and protobuf's serialisation is not canonical. The key of a marker is kind `m`, partition u32
big-endian, transaction 16 bytes, topic in UTF-8. That of a barrier is kind `b` and the coordinator,
u64 big-endian, so compaction keeps a coordinator's last barrier in a partition.
"""

import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError, ForeignKeyError, no_bytes, shown
from stilltide.schemas.messages import Fields, from_bytes
from stilltide.schemas.topics import key_place
from stilltide.schemas.v1 import markers_pb2 as pb
from stilltide.schemas.v1.markers_pb2 import OutcomeMarker
from stilltide.schemas.v1.requests_pb2 import OUTCOME_ABORT, OUTCOME_COMMIT
from stilltide.schemas.values import SEQUENCE_MAX, EndOffset, TopicPartition, TxnId

BARRIER_KIND = b"b"
_BARRIER_KEY = struct.Struct(">cQ")


class Probe(NamedTuple):
    """The id of a snapshot writer's probe: 16 random bytes of the writer, and a counter."""

    nonce: bytes
    counter: int


UNASKED = Probe(bytes(16), 1)
"""The probe of a barrier that answers none, but announces data partitions to the writer (E7)."""


class OpenTransactions(NamedTuple):
    """A coordinator's open transactions that are registered on one data partition.

    Attributes:
        data: the data partition.
        topic_id: topic id that all of them registered (E8).
        start_offset: lowest registered start offset (C2); none of their records is below.
        sequence: sequence of the transaction that registered that start offset.
        transaction_count: number of these transactions.
    """

    data: TopicPartition
    topic_id: bytes
    start_offset: EndOffset
    sequence: int
    transaction_count: int


class Barrier(NamedTuple):
    """The answer to a probe; every marker of a transaction that had ended precedes the barrier.

    Attributes:
        coordinator: number of the coordinator that answers.
        probe: probe that is answered.
        low_watermark: sequence below which every transaction has ended (C7).
        open: open transactions on the data partitions that the marker partition serves.
    """

    coordinator: int
    probe: Probe
    low_watermark: int
    open: tuple[OpenTransactions, ...]


_OPEN = Fields(OpenTransactions, pb.OpenTransactions)


def encode_barrier_key(coordinator: int) -> bytes:
    """Key of a coordinator's barrier."""
    return _BARRIER_KEY.pack(BARRIER_KIND, coordinator)


def encode_barrier(barrier: Barrier) -> bytes:
    """Value of a barrier."""
    return pb.Barrier(
        nonce=barrier.probe.nonce,
        counter=barrier.probe.counter,
        low_watermark=barrier.low_watermark,
        open=map(_OPEN.message, barrier.open),
    ).SerializeToString()


def decode_barrier(key: bytes, value: bytes | None) -> Barrier | None:
    """The barrier of a record; None for a tombstone.

    Raises:
        DecodeError: not a barrier.
    """
    if len(key) != _BARRIER_KEY.size or key[:1] != BARRIER_KIND:
        raise ForeignKeyError(f"key {shown(key)} is not that of a barrier")
    if value is None:
        return None
    if not value:
        raise no_bytes("a barrier")
    body = from_bytes(pb.Barrier, value, "a barrier")
    if not body.nonce or not body.counter:
        raise DecodeError("a barrier that answers no probe")
    return Barrier(
        _BARRIER_KEY.unpack(key)[1],
        Probe(body.nonce, body.counter),
        body.low_watermark,
        tuple(map(_OPEN.value, body.open)),
    )


_KIND = b"m"
_KEY = struct.Struct(">cIQQ")
COORDINATORS_MAX = 2**16
"""More coordinators than any cluster has: a higher number in a key is nobody's (C14)."""


class Marker(NamedTuple):
    """Outcome of `txn` on `data`.

    Attributes:
        data: the data partition.
        txn: the transaction.
        committed: whether the transaction committed; else it aborted.
        start_offset: offset below which the transaction has no record (C2).
        end_offset: end offset of a committed transaction's records (C3); None: topic deleted.
        record_count: number of records delivered, for a commit (C6).
        topic_id: Kafka topic id to which the offsets belong, 16 bytes (E8).
    """

    data: TopicPartition
    txn: TxnId
    committed: bool
    start_offset: EndOffset
    end_offset: EndOffset | None
    record_count: int
    topic_id: bytes


def encode_key(data: TopicPartition, txn: TxnId) -> bytes:
    """Key of the marker of (topic, partition, transaction)."""
    # Not protobuf: compaction needs equal bytes for equal keys.
    return _KEY.pack(_KIND, data.partition, *txn) + data.topic.encode()


def decode_key(key: bytes | None) -> tuple[TopicPartition, TxnId]:
    """The data partition and the transaction in the key of a marker.

    Raises:
        ForeignKeyError: not the key of a marker.
    """
    if key is None or len(key) <= _KEY.size or key[:1] != _KIND:
        raise ForeignKeyError(f"key {shown(key)} is not that of an outcome marker")
    _, partition, coordinator, sequence = _KEY.unpack_from(key)
    if coordinator > COORDINATORS_MAX or sequence > SEQUENCE_MAX:
        raise ForeignKeyError(f"no coordinator has given the transaction {coordinator}:{sequence}")
    return key_place(key[_KEY.size :], partition), TxnId(coordinator, sequence)


def encode_value(marker: Marker) -> bytes:
    """Value of a marker."""
    return OutcomeMarker(
        outcome=OUTCOME_COMMIT if marker.committed else OUTCOME_ABORT,
        start_offset=marker.start_offset,
        end_offset=marker.end_offset,
        record_count=marker.record_count,
        topic_id=marker.topic_id,
    ).SerializeToString()


def is_barrier(key: bytes | None) -> bool:
    """Whether a record with this key is a barrier (E1), if it is any of Stilltide's."""
    return key is not None and key[:1] == BARRIER_KIND


def decode(key: bytes | None, value: bytes | None) -> Marker | Barrier | None:
    """The marker or barrier of a record; None for a tombstone.

    Raises:
        DecodeError: the record is neither a marker nor a barrier.
    """
    if key is not None and is_barrier(key):
        return decode_barrier(key, value)
    data, txn = decode_key(key)
    if value is None:
        return None
    if not value:
        raise no_bytes("an outcome marker")
    try:
        body = OutcomeMarker.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError("not an outcome marker", detail=str(error)) from error
    outcome = body.outcome
    if outcome not in (OUTCOME_COMMIT, OUTCOME_ABORT):
        raise DecodeError(f"outcome {outcome} is neither commit nor abort")
    return Marker(
        data,
        txn,
        outcome == OUTCOME_COMMIT,
        EndOffset(body.start_offset),
        EndOffset(body.end_offset) if body.HasField("end_offset") else None,
        body.record_count,
        body.topic_id,
    )
