"""Port: topics and offsets of one cluster."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from stilltide.schemas.topics import BrokerFigures, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class TopicDescription(NamedTuple):
    """A topic that exists; `replica_count` is that of the partition with the fewest."""

    name: str
    topic_id: bytes
    partition_count: int
    replica_count: int


class LogAdmin(Protocol):
    """Topics and offsets."""

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Creates what is missing and verifies the rest; safe to call at once from several.

        Raises:
            FatalError: a topic exists with other partitions or configs; names both. Or a new one
                would have more replicas than the cluster has brokers.
            RetriableError: the broker cannot be reached within the time-out; names its address.
        """
        ...

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name; a missing one is not in the answer."""
        ...

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """The configs of the topics that exist, by name; those at their defaults too."""
        ...

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets: high watermarks, or last stable offsets when `committed`.

        Read after the call began. A partition that does not exist is not in the answer.
        """
        ...

    async def start_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets; a partition that does not exist is not in the answer."""
        ...

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Moves each log's start up to an offset; one at or below the start changes nothing.

        Once it returns, `start_offsets` says so. After an error some may have been moved.

        Raises:
            OffsetOutOfRangeError: an offset above the end of its log.
            FatalError: a partition does not exist, or its topic has no delete policy.
            RetriableError: the broker is away; it may have been done.
        """
        ...

    async def cluster_id(self) -> str:
        """What the cluster itself is named by; no two clusters share it."""
        ...

    async def broker_figures(self) -> BrokerFigures:
        """How many brokers are up, and how many replicas they give to topics by default."""
        ...

    async def list_topics(self) -> list[str]:
        """Names of all topics that are not Kafka's own, ascending."""
        ...

    async def topic_overrides(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Configs that were set on the topics themselves, by name; a missing one is not there."""
        ...

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Has a topic have at least so many partitions.

        Raises:
            FatalError: the topic does not exist.
            RetriableError: the broker is away; it may have been done.
        """
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...
