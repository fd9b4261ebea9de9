"""Names, policies and configs of the system topics.

*Source*: Kafka's topic configs: deleting records needs `delete` in `cleanup.policy`, and
`max.message.bytes` must exceed a full log entry.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

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
REPLICATION_MARKERS = PREFIX + "replication-markers"
REPLICATION_POSITIONS = PREFIX + "replication-positions"
ABORTED_INDEX = PREFIX + "aborted-index"
SETTINGS = PREFIX + "settings"

ENTRY_BYTES_MAX = 5 * 1024 * 1024
"""`max.message.bytes` of topics with batches: 4 MiB of records, framing and headers fit."""

MIN_INSYNC_REPLICAS = "min.insync.replicas"

_LEGAL_NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")

_FOREVER = "-1"
_SHORT_RETENTION_MS = str(10 * 60 * 1000)


class Replicas(NamedTuple):
    """The replication of a topic.

    Attributes:
        factor: replicas of each partition, >= 1.
        min_insync: replicas that must have a record before its writer is answered, <= `factor`.
    """

    factor: int
    min_insync: int


class BrokerFigures(NamedTuple):
    """The figures of a cluster on which the default number of replicas depends.

    Attributes:
        brokers: number of brokers that are up, >= 1.
        default_replicas: `default.replication.factor` of a broker; 1 if reading it is forbidden.
    """

    brokers: int
    default_replicas: int


@dataclass(frozen=True)
class TopicSpec:
    """A system topic's required properties: a missing topic is created, a different one refused.

    Attributes:
        name: name of the topic.
        partition_count: number of partitions.
        configs: required configs; other configs may have any value.
        replicas: replicas of a topic that is created; None leaves them to the cluster. An existing
            topic is never refused for its replicas.
    """

    name: str
    partition_count: int
    configs: Mapping[str, str] = field(default_factory=dict[str, str])
    replicas: Replicas | None = None

    @property
    def created_configs(self) -> dict[str, str]:
        """The configs that the topic is created with."""
        configs = dict(self.configs)
        if self.replicas is not None:
            configs[MIN_INSYNC_REPLICAS] = str(self.replicas.min_insync)
        return configs


def is_system_topic(name: str) -> bool:
    """Whether a topic of this name belongs to Stilltide, possibly to a later version."""
    return name.startswith(PREFIX)


def is_topic_name(name: str) -> bool:
    """Whether Kafka allows a topic of this name."""
    return _LEGAL_NAME.fullmatch(name) is not None


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
    return [
        TopicSpec(TXN_LOG, coordinators, kept),
        TopicSpec(TXN_REQUESTS, coordinators, passing),
        TopicSpec(OPERATOR_REQUESTS, coordinators, passing),
        TopicSpec(TXN_RESPONSES, partitions, passing),
        TopicSpec(TXN_MARKERS, partitions, markers),
        TopicSpec(TXN_SNAPSHOTS, partitions, compacted),
        TopicSpec(PENDING_ACK_LOG, partitions, kept),
        TopicSpec(ACK_REQUESTS, partitions, passing),
        TopicSpec(OPERATOR_ACK_REQUESTS, partitions, passing),
        TopicSpec(SNAPSHOT_REQUESTS, partitions, passing),
        TopicSpec(REPLICATION_MARKERS, partitions, compacted),
        TopicSpec(REPLICATION_POSITIONS, partitions, compacted),
        TopicSpec(ABORTED_INDEX, partitions, compacted),
        TopicSpec(SETTINGS, 1, compacted),
    ]
