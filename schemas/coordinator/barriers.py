"""Codec of the barriers in txn-markers: a coordinator's open transactions after a probe arrived.

*Source*: docs/protocols E1. The key is kind `b` and the coordinator, u64 big-endian, so compaction
keeps a coordinator's last barrier in a partition.
"""

import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError, ForeignKeyError, no_bytes, shown
from stilltide.schemas.v1 import markers_pb2 as pb
from stilltide.schemas.values import EndOffset, TopicPartition

KIND = b"b"
_KEY = struct.Struct(">cQ")


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


def encode_key(coordinator: int) -> bytes:
    """Key of a coordinator's barrier."""
    return _KEY.pack(KIND, coordinator)


def encode_value(barrier: Barrier) -> bytes:
    """Value of a barrier."""
    return pb.Barrier(
        nonce=barrier.probe.nonce,
        counter=barrier.probe.counter,
        low_watermark=barrier.low_watermark,
        open=[
            pb.OpenTransactions(
                topic=one.data.topic,
                partition=one.data.partition,
                topic_id=one.topic_id,
                start_offset=one.start_offset,
                sequence=one.sequence,
                transaction_count=one.transaction_count,
            )
            for one in barrier.open
        ],
    ).SerializeToString()


def decode(key: bytes, value: bytes | None) -> Barrier | None:
    """The barrier of a record; None for a tombstone.

    Raises:
        DecodeError: not a barrier.
    """
    if len(key) != _KEY.size or key[:1] != KIND:
        raise ForeignKeyError(f"key {shown(key)} is not that of a barrier")
    if value is None:
        return None
    if not value:
        raise no_bytes("a barrier")
    try:
        body = pb.Barrier.FromString(value)
    except ProtobufDecodeError as error:
        raise DecodeError("not a barrier", detail=str(error)) from error
    if not body.nonce or not body.counter:
        raise DecodeError("a barrier that answers no probe")
    return Barrier(
        _KEY.unpack(key)[1],
        Probe(body.nonce, body.counter),
        body.low_watermark,
        tuple(map(_open_of, body.open)),
    )


def _open_of(one: pb.OpenTransactions) -> OpenTransactions:
    return OpenTransactions(
        TopicPartition(one.topic, one.partition),
        one.topic_id,
        EndOffset(one.start_offset),
        one.sequence,
        one.transaction_count,
    )
