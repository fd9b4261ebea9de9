"""Identities and positions shared by every layer: small, frozen, ordered, hashable.

*Source*: docs/protocols, Words: an *offset* is inclusive, an *end offset* exclusive.
"""

import struct
from typing import NamedTuple, NewType

from stilltide.schemas.errors import DecodeError

Offset = NewType("Offset", int)
"""Position of one record, inclusive."""

EndOffset = NewType("EndOffset", int)
"""Position after the last record, exclusive."""

ClusterName = NewType("ClusterName", str)
"""A cluster's name in settings and commands, for example `a`."""

OFFSET_MAX, PARTITION_MAX = 2**63 - 1, 2**31 - 1
"""Kafka's offsets and partitions are signed numbers of 64 and of 32 bits."""

SEQUENCE_MAX = 2**63 - 1
"""The greatest sequence that a coordinator gives."""

_TXN_ID = struct.Struct(">QQ")
TXN_ID_BYTES = _TXN_ID.size
TOPIC_ID_BYTES = 16


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class OffsetRange(NamedTuple):
    """Offsets `[start, end)` of one partition."""

    data: TopicPartition
    start: Offset
    end: EndOffset


class Range(NamedTuple):
    """Offsets `[first, end)` of one log."""

    first: Offset
    end: EndOffset


Ranges = tuple[Range, ...]
"""A set of offsets: ascending ranges with gaps between them, none of them empty."""


class SubscriptionId(NamedTuple):
    """A group partition: a data partition as one consumer group reads it (G)."""

    data: TopicPartition
    group: str

    def __str__(self) -> str:
        return f"{self.data} of {self.group}"


class TxnId(NamedTuple):
    """A coordinated transaction: its coordinator (a partition of txn-log) and sequence there."""

    coordinator: int
    sequence: int

    def to_bytes(self) -> bytes:
        """The 16 bytes of the `txn` header: coordinator, then sequence, unsigned big-endian."""
        return _TXN_ID.pack(self.coordinator, self.sequence)

    @classmethod
    def from_bytes(cls, data: bytes) -> "TxnId":
        """Reads the bytes of `to_bytes`; raises `DecodeError` for any other length."""
        if len(data) != TXN_ID_BYTES:
            raise DecodeError(f"a transaction id has {TXN_ID_BYTES} bytes, not {len(data)}")
        return cls(*_TXN_ID.unpack(data))

    def __str__(self) -> str:
        return f"{self.coordinator}:{self.sequence}"


class BatchPosition(NamedTuple):
    """The place of one log record: its entry, and its index in the entry's batch (A4).

    A record written bare has `batch_size` 1 and `batch_index` 0.
    """

    partition: int
    offset: Offset
    batch_size: int
    batch_index: int
