"""Incarnations, origins and claims: names of records that are valid on all clusters; publishes.

*Source*: docs/protocols H1, H7, I6. Header `origin`: incarnation (8 bytes), offset u64 big-endian,
name of the cluster in UTF-8. Of several headers of that name the last one counts, which a link
wrote. A publish is a link within one cluster; its name stands in the keys of buckets and in
transactional ids where other links have the name of their source cluster. No cluster's and no
topic's name has a colon.

Refuses nothing: a header that no link can have written belongs to the application, and is kept. Web
services write `origin: https://shop.example`; so offsets and names are checked, not lengths alone.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.topics import is_topic_name
from stilltide.schemas.values import ClusterName, Offset, Ranges

ORIGIN = "origin"
INCARNATION_BYTES = 8

_NAME_AT = INCARNATION_BYTES + 8
_VALUE_BYTES_MAX = 1024
"""Longest value that may be an origin: parts of values are kept in a cache."""

_OFFSET_MAX = 2**56
"""No log is so long, and the offset of no text is lower: its first byte would have to be a NUL."""


class Incarnation(NamedTuple):
    """A topic on a cluster between its creation and its deletion.

    Attributes:
        cluster: name of the cluster.
        topic: result of `topic_incarnation` for the Kafka topic id.
    """

    cluster: ClusterName
    topic: bytes

    def __str__(self) -> str:
        return f"{self.cluster}:{self.topic.hex()}"


class Origin(NamedTuple):
    """The place at which a copied record was written first."""

    incarnation: Incarnation
    offset: Offset


Claims = Mapping[Incarnation, Ranges]
"""Records known to be read: for each incarnation, offsets of its local records."""


def topic_incarnation(topic_id: bytes) -> bytes:
    """The first 8 of the 16 bytes of a Kafka topic id, 60 of their bits random."""
    assert len(topic_id) == 2 * INCARNATION_BYTES
    return topic_id[:INCARNATION_BYTES]


class OriginStamp:
    """Makes the headers of copies.

    Args:
        incarnation: incarnation in which the records were written first.
    """

    def __init__(self, incarnation: Incarnation) -> None:
        self._topic = incarnation.topic
        self._cluster = incarnation.cluster.encode()
        self._packed = Struct(f">{INCARNATION_BYTES}sQ{len(self._cluster)}s").pack

    def value(self, offset: Offset) -> bytes:
        """Value of the `origin` header of a record."""
        return self._packed(self._topic, offset, self._cluster)

    def headers(self, headers: Headers | None, offset: Offset) -> list[tuple[str, bytes | None]]:
        """Headers of a copy: the record's, without `txn` and origins of links, and a new origin."""
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
        """Headers of many copies, at half the cost of single calls."""
        topic, cluster, packed = self._topic, self._cluster, self._packed
        return [
            self.headers(own, offset) if own else [(ORIGIN, packed(topic, offset, cluster))]
            for own, offset in zip(headers, offsets, strict=True)
        ]


def origin_of(headers: Headers | None) -> Origin | None:
    """The origin in the last `origin` header; None without one, or if no link wrote it."""
    if not headers:
        return None
    for name, value in reversed(headers):
        if name == ORIGIN:
            return _parsed(value)
    return None


def _parsed(value: bytes | None) -> Origin | None:
    if value is None or not _NAME_AT < len(value) <= _VALUE_BYTES_MAX:
        return None
    offset = int.from_bytes(value[INCARNATION_BYTES:_NAME_AT])
    if offset >= _OFFSET_MAX:
        return None
    incarnation = _incarnation(value[:INCARNATION_BYTES], value[_NAME_AT:])
    return None if incarnation is None else Origin(incarnation, Offset(offset))


@lru_cache(maxsize=1024)
def _incarnation(topic: bytes, cluster: bytes) -> Incarnation | None:
    """A cached value: a reader meets few incarnations, each in many records."""
    try:
        name = cluster.decode()
    except UnicodeDecodeError:
        return None
    return Incarnation(ClusterName(name), topic) if name.isprintable() else None


_BEGINNING = "publish"


class PublishRoute(NamedTuple):
    """A topic whose committed records are copied, and the topic of the copies."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}:{self.target}"

    @property
    def link(self) -> ClusterName:
        """The name of the link."""
        return ClusterName(f"{_BEGINNING}:{self}")


def publish_of(link: ClusterName) -> PublishRoute | None:
    """The publish of a link's name; None: the name is that of a cluster."""
    beginning, *topics = link.split(":")
    if beginning != _BEGINNING or len(topics) != len(PublishRoute._fields):
        return None
    return PublishRoute(*topics) if all(map(is_topic_name, topics)) else None
