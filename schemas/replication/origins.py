"""Incarnations, origins and claims: what replication says of records across clusters.

*Source*: docs/protocols H1, I. Header `origin`: incarnation (8 bytes), offset u64 big-endian, name of
the cluster in UTF-8. Of several headers of that name the last one counts: it is the link's.

Refuses nothing: a header that no link wrote belongs to the application, and stays.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.values import ClusterName, EndOffset, Offset

ORIGIN = "origin"
INCARNATION_BYTES = 8

_NAME_AT = INCARNATION_BYTES + 8


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


class OriginStamp:
    """Makes the headers of copies; 0.4 us for each.

    Args:
        incarnation: where the records were written first.
    """

    def __init__(self, incarnation: Incarnation) -> None:
        self._topic = incarnation.topic
        self._cluster = incarnation.cluster.encode()

    def value(self, offset: Offset) -> bytes:
        """Value of the `origin` header of a record."""
        return self._topic + offset.to_bytes(8) + self._cluster

    def headers(self, headers: Headers | None, offset: Offset) -> list[tuple[str, bytes | None]]:
        """Headers of a copy: those of the record, without `txn` and other origins, and its own."""
        own = (ORIGIN, self.value(offset))
        if not headers:
            return [own]
        kept = [
            (name, value)
            for name, value in headers
            if name != TXN and (name != ORIGIN or _parsed(value) is None)
        ]
        return [*kept, own]

    def stamped(
        self, headers: Iterable[Headers | None], offsets: Iterable[Offset]
    ) -> list[list[tuple[str, bytes | None]]]:
        """Headers of many copies; half the cost of one after the other."""
        topic, cluster = self._topic, self._cluster
        return [
            self.headers(own, offset) if own else [(ORIGIN, topic + offset.to_bytes(8) + cluster)]
            for own, offset in zip(headers, offsets, strict=True)
        ]


def origin_of(headers: Headers | None) -> Origin | None:
    """What the last `origin` header says; None without one, or when no link wrote it."""
    if not headers:
        return None
    for name, value in reversed(headers):
        if name == ORIGIN:
            return _parsed(value)
    return None


def _parsed(value: bytes | None) -> Origin | None:
    if value is None or len(value) <= _NAME_AT:
        return None
    incarnation = _incarnation(value[:INCARNATION_BYTES], value[_NAME_AT:])
    if incarnation is None:
        return None
    return Origin(incarnation, Offset(int.from_bytes(value[INCARNATION_BYTES:_NAME_AT])))


@lru_cache(maxsize=1024)
def _incarnation(topic: bytes, cluster: bytes) -> Incarnation | None:
    """Remembered: a reader sees few of them, each in many records."""
    try:
        return Incarnation(ClusterName(cluster.decode()), topic)
    except UnicodeDecodeError:
        return None
