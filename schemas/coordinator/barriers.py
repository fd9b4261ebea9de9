"""Codec of the barriers in txn-markers: what a coordinator's log held after it was asked.

*Source*: docs/protocols E1. The key is kind `b` and the coordinator, u64 big-endian: of a
coordinator's barriers in a partition compaction keeps the last.
"""

import struct
from typing import NamedTuple

from google.protobuf.message import DecodeError as ProtobufDecodeError

from stilltide.schemas.errors import DecodeError
from stilltide.schemas.v1 import markers_pb2 as pb
from stilltide.schemas.values import EndOffset, TopicPartition

KIND = b"b"
_KEY = struct.Struct(">cQ")


class Probe(NamedTuple):
    """One question of one snapshot writer: 16 random bytes of the writer, and its count."""

    nonce: bytes
    counter: int


UNASKED = Probe(bytes(16), 1)
"""Of a barrier that answers nobody: it tells the snapshot writer of new data partitions."""


class OpenTransactions(NamedTuple):
    """Transactions of a coordinator registered on a data partition that have not ended.

    Attributes:
        data: the data partition.
        topic_id: the topic id they registered; those of another id are another item (E8).
        start_offset: the lowest one registered (C2); no record of theirs lies below it.
        sequence: of the transaction that registered it.
        transaction_count: how many they are.
    """

    data: TopicPartition
    topic_id: bytes
    start_offset: EndOffset
    sequence: int
    transaction_count: int


class Barrier(NamedTuple):
    """The answer to a probe; every marker of a transaction that had ended lies before it.

    Attributes:
        coordinator: who answers.
        probe: what is answered.
        low_watermark: every sequence below it has ended (C7).
        open: on the data partitions that the marker partition serves.
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
        raise DecodeError(f"key {key!r} is not that of a barrier")
    if value is None:
        return None
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
