"""Names, policies and configs of the system topics, and which partition serves a data partition.

*Source*: Kafka's topic configs: deleting records needs `delete` in `cleanup.policy`, and
`max.message.bytes` must exceed a full log entry; docs/protocols E10 (what compacts is bounded). A
stable hash maps a data partition to one partition of every system topic (docs/glossary.md), so a
reader of one data partition reads one partition of each.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from stilltide.schemas.errors import DecodeError, ForeignKeyError
from stilltide.schemas.values import PARTITION_MAX, TopicPartition

PREFIX = "stilltide."
TXN_LOG = PREFIX + "txn-log"
TXN_REQUESTS = PREFIX + "txn-requests"
TXN_RESPONSES = PREFIX + "txn-responses"
TXN_MARKERS = PREFIX + "txn-markers"
TXN_SNAPSHOTS = PREFIX + "txn-snapshots"
PENDING_ACK_LOG = PREFIX + "pending-ack-log"
ACK_REQUESTS = PREFIX + "ack-requests"
OPERATOR_REQUESTS = PREFIX + "operator-requests"
OPERATOR_ACK_REQUESTS = PREFIX + "operator-ack-requests"
SNAPSHOT_REQUESTS = PREFIX + "snapshot-requests"
GROUP_REQUESTS = PREFIX + "group-requests"
REPLICATION_MARKERS = PREFIX + "replication-markers"
REPLICATION_POSITIONS = PREFIX + "replication-positions"
ABORTED_INDEX = PREFIX + "aborted-index"
SETTINGS = PREFIX + "settings"

ENTRY_BYTES_MAX = 5 * 1024 * 1024
"""`max.message.bytes` of topics with batches: 4 MiB of records, framing and headers fit."""

MIN_INSYNC_REPLICAS = "min.insync.replicas"
CLEANUP_POLICY = "cleanup.policy"

_LEGAL_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
_LEGAL_PATTERN = re.compile(r"(?=.*[*?\[])[a-zA-Z0-9._\-*?\[\]!]{1,249}")

SHOWN_NAME = 64
"""Letters that an error shows of a name that is none."""

_FOREVER = "-1"
_MINUTE_MS = 60 * 1000
_SHORT_RETENTION_MS = str(10 * _MINUTE_MS)

_COMPACTED_OFTEN = MappingProxyType(
    {
        "segment.bytes": str(32 * 1024 * 1024),
        "segment.ms": str(10 * _MINUTE_MS),
        "max.compaction.lag.ms": str(20 * _MINUTE_MS),
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": str(60 * _MINUTE_MS),
    }
)
"""E10: bounds on what a reader of a compacted topic finds in addition to the last value of each
key. The cleaner leaves a tombstone for `delete.retention.ms` at least, longer than any start."""

_TIMED_BY_BROKER = MappingProxyType({"message.timestamp.type": "LogAppendTime"})
"""E9: the age of a marker must not depend on its writer's clock. C17: a worker whose clock is wrong
answers, so that `stilltide status` can show what hinders it."""

_NO_BYTES_MAX = MappingProxyType({"retention.bytes": _FOREVER})
"""A cluster's `log.retention.bytes` would delete entries that recovery needs."""

_AT_MOST = frozenset(
    {"segment.bytes", "segment.ms", "max.compaction.lag.ms", "min.cleanable.dirty.ratio"}
)
"""Wanted configs of which a smaller value serves as well."""


class Replicas(NamedTuple):
    """The replication of a topic.

    Attributes:
        factor: replicas of each partition, >= 1.
        min_insync: replicas that must have a record before its writer is answered, <= `factor`.
    """

    factor: int
    min_insync: int


class Broker(NamedTuple):
    """A broker that is up: its id, and its rack if it has one."""

    id: int
    rack: str | None = None


class PartitionReplicas(NamedTuple):
    """The replicas of one partition.

    Attributes:
        replicas: ids of the brokers that hold the partition, the preferred leader first.
        in_sync: those of them that are in sync.
    """

    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class BrokerFigures(NamedTuple):
    """The figures of a cluster on which the default number of replicas depends.

    Attributes:
        brokers: number of brokers that are up, >= 1.
        default_replicas: `default.replication.factor` of a broker; 1 if reading it is forbidden.
        registered: number of brokers that the cluster knows, those that are down included; 0 if
            the cluster cannot tell (before Kafka 4.0).
    """

    brokers: int
    default_replicas: int
    registered: int = 0


@dataclass(frozen=True)
class TopicSpec:
    """A system topic's properties: a missing topic is created, a different one may be refused.

    Attributes:
        name: name of the topic.
        partition_count: number of partitions.
        configs: required configs: a topic with another value is refused.
        replicas: replicas of a topic that is created; None leaves them to the cluster. An existing
            topic is never refused for its replicas.
        wanted: further configs that a topic is created with. An existing topic is never refused for
            them; configs that are in neither mapping may have any value.
    """

    name: str
    partition_count: int
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    replicas: Replicas | None = None
    wanted: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def created_configs(self) -> dict[str, str]:
        """The configs that the topic is created with."""
        configs = {**self.wanted, **self.configs}
        if self.replicas is not None:
            configs[MIN_INSYNC_REPLICAS] = str(self.replicas.min_insync)
        return configs


def is_system_topic(name: str) -> bool:
    """Whether a topic of this name belongs to Stilltide, possibly to a later version."""
    return name.startswith(PREFIX)


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows a topic of this name."""
    return _LEGAL_NAME.fullmatch(name) is not None


def data_partition(topic: str, partition: int) -> TopicPartition:
    """The data partition that a request names; raises `DecodeError` if no topic can have it."""
    if not is_topic_name(topic) or partition > PARTITION_MAX:
        raise DecodeError(f"no topic can have the partition {topic[:SHOWN_NAME]!r}/{partition}")
    return TopicPartition(topic, partition)


def is_topic_pattern(name: str) -> bool:
    """Whether a text is a shell pattern that some topic name may fit."""
    return _LEGAL_PATTERN.fullmatch(name) is not None


@lru_cache(maxsize=4096)  # a topic's partitions occur again and again
def key_place(topic: bytes, partition: int) -> TopicPartition:
    """The data partition that the key of a record names.

    Raises:
        ForeignKeyError: no partition can have this name and number. Kafka refuses a whole question
            that contains such a name, so a reader must not take it up (B10).
    """
    name = topic.decode("utf-8", "replace")
    if not is_topic_name(name) or partition > PARTITION_MAX:
        raise ForeignKeyError(f"no partition can be {name[:SHOWN_NAME]!r}/{partition}")
    return TopicPartition(name, partition)


def compacts(configs: Mapping[str, str | None]) -> bool:
    """Whether Kafka's cleaner keeps only the last record of each key of a topic (C18).

    Args:
        configs: the topic's configs, defaults included.
    """
    policies = (configs.get(CLEANUP_POLICY) or "").split(",")
    return "compact" in [policy.strip() for policy in policies]


def same_config(present: str | None, required: str) -> bool:
    """Whether two values of a config mean the same: the order of a list means nothing."""
    return _items(present) == _items(required)


def serves(name: str, present: str | None, wanted: str) -> bool:
    """Whether a topic's value of a wanted config is as good as the wanted value (E10)."""
    if name in _AT_MOST and present is not None:
        return float(present) <= float(wanted)
    return same_config(present, wanted)


def _items(value: str | None) -> list[str]:
    return sorted(part.strip() for part in (value or "").split(","))


def system_topics(*, coordinators: int, partitions: int) -> list[TopicSpec]:
    """Every system topic of a cluster.

    Args:
        coordinators: number of partitions of txn-log, txn-requests and operator-requests, one per
            coordinator, >= 1.
        partitions: number of partitions of each other topic to which data is hashed, >= 1.
    """
    entry_bytes = {"max.message.bytes": str(ENTRY_BYTES_MAX)}
    kept = MappingProxyType({"cleanup.policy": "delete", "retention.ms": _FOREVER, **entry_bytes})
    passing = MappingProxyType(
        {"cleanup.policy": "delete", "retention.ms": _SHORT_RETENTION_MS, **entry_bytes}
    )
    markers = MappingProxyType({"cleanup.policy": "compact,delete", "retention.ms": _FOREVER})
    compacted = MappingProxyType({"cleanup.policy": "compact"})
    often, unlimited, timed = _COMPACTED_OFTEN, _NO_BYTES_MAX, _TIMED_BY_BROKER
    return [
        TopicSpec(TXN_LOG, coordinators, kept, wanted=unlimited),
        TopicSpec(TXN_REQUESTS, coordinators, passing, wanted=unlimited),
        TopicSpec(OPERATOR_REQUESTS, coordinators, passing, wanted=unlimited),
        TopicSpec(TXN_RESPONSES, partitions, passing, wanted={**unlimited, **timed}),
        TopicSpec(TXN_MARKERS, partitions, markers, wanted={**often, **unlimited, **timed}),
        TopicSpec(TXN_SNAPSHOTS, partitions, compacted, wanted=often),
        TopicSpec(PENDING_ACK_LOG, partitions, kept, wanted=unlimited),
        TopicSpec(ACK_REQUESTS, partitions, passing, wanted=unlimited),
        TopicSpec(OPERATOR_ACK_REQUESTS, partitions, passing, wanted=unlimited),
        TopicSpec(SNAPSHOT_REQUESTS, partitions, passing, wanted=unlimited),
        TopicSpec(GROUP_REQUESTS, partitions, passing, wanted=unlimited),
        TopicSpec(REPLICATION_MARKERS, partitions, compacted, wanted=often),
        TopicSpec(REPLICATION_POSITIONS, partitions, compacted, wanted=often),
        TopicSpec(ABORTED_INDEX, partitions, compacted, wanted=often),
        TopicSpec(SETTINGS, 1, compacted, wanted=often),
    ]


@lru_cache(maxsize=4096)  # asked for each marker
def system_partition(data: TopicPartition, partition_count: int) -> int:
    """CRC-32 of `topic:partition` in UTF-8, modulo the system topic's partition count."""
    return zlib.crc32(f"{data.topic}:{data.partition}".encode()) % partition_count
