"""Incarnations, origins and claims: what replication says of records across clusters.

*Source*: protocols.md H1, I. Header `origin`: incarnation (8 bytes), offset u64 big-endian, name of
the cluster in UTF-8. Of several headers of that name the last one counts: it is the link's.

Refuses nothing: a header that no link wrote belongs to the application, and stays.
"""

import struct
from collections.abc import Mapping
from typing import NamedTuple

from schemas.headers import TXN, Headers
from schemas.values import ClusterName, EndOffset, Offset

ORIGIN = "origin"
INCARNATION_BYTES = 8

_ORIGIN = struct.Struct(f">{INCARNATION_BYTES}sQ")


class Incarnation(NamedTuple):
    """A topic on a cluster between its creation and its deletion.

    Attributes:
        cluster: the cluster.
        topic: what `topic_incarnation` made of its Kafka topic id.
    """

    cluster: ClusterName
    topic: bytes

    def __str__(self) -> str:
        return f"{self.cluster}:{self.topic.hex()}"


class Origin(NamedTuple):
    """Where a copied record was written first."""

    incarnation: Incarnation
    offset: Offset


class Interval(NamedTuple):
    """Offsets `[first, end)`; never empty."""

    first: Offset
    end: EndOffset


Intervals = tuple[Interval, ...]
"""Ascending, with gaps between them."""

Claims = Mapping[Incarnation, Intervals]
"""Records that are known to be read: per incarnation the offsets of its local records."""


def topic_incarnation(topic_id: bytes) -> bytes:
    """The first 8 of the 16 bytes of a Kafka topic id, 60 of their bits random."""
    assert len(topic_id) == 2 * INCARNATION_BYTES
    return topic_id[:INCARNATION_BYTES]


def origin_value(origin: Origin) -> bytes:
    """Value of the `origin` header."""
    incarnation, offset = origin
    return _ORIGIN.pack(incarnation.topic, offset) + incarnation.cluster.encode()


def origin_of(headers: Headers | None) -> Origin | None:
    """What the last `origin` header says; None without one, or when no link wrote it."""
    if not headers:
        return None
    for name, value in reversed(headers):
        if name == ORIGIN:
            return _parsed(value)
    return None


def copied_headers(headers: Headers | None, origin: Origin) -> list[tuple[str, bytes | None]]:
    """Headers of a copy: those of the record, without `txn` and other origins, and its own."""
    kept = [
        (name, value)
        for name, value in headers or ()
        if name != TXN and (name != ORIGIN or _parsed(value) is None)
    ]
    return [*kept, (ORIGIN, origin_value(origin))]


def _parsed(value: bytes | None) -> Origin | None:
    if value is None or len(value) <= _ORIGIN.size:
        return None
    topic, offset = _ORIGIN.unpack_from(value)
    try:
        cluster = value[_ORIGIN.size :].decode()
    except UnicodeDecodeError:
        return None
    return Origin(Incarnation(ClusterName(cluster), topic), Offset(offset))
