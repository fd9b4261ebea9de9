"""Port: topics and offsets of one cluster."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from stilltide.schemas.topics import BrokerFigures, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class TopicDescription(NamedTuple):
    """A topic that exists; `replica_count` is of the partition with the fewest replicas."""

    name: str
    topic_id: bytes
    partition_count: int
    replica_count: int


class LogAdmin(Protocol):
    """Topics and offsets."""

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Creates missing topics and verifies the others; several processes may call at once.

        Once it returns, every broker that can be asked knows the topics and their leaders.

        Raises:
            FatalError: a topic exists with other partitions or configs (names both), or a new
                topic would have more replicas than the cluster has brokers.
            RetriableError: the broker cannot be reached within the time-out; names its address.
        """
        ...

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name; a missing one is not in the answer."""
        ...

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """The configs of the topics that exist, by name, defaults included."""
        ...

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets: high watermarks, or last stable offsets when `committed`.

        The offsets are read after the call began. A partition that does not exist is left out.
        """
        ...

    async def start_offsets(
        self, partitions: Sequence[TopicPartition], *, since_ms: int | None = None
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets; a partition that does not exist is not in the answer.

        With `since_ms`: the offset of the first record whose timestamp is not below this time,
        milliseconds since 1970; the end offset if there is no such record.
        """
        ...

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Moves each log's start up to an offset; an offset at or below the start changes nothing.

        Once it returns, `start_offsets` reports the new starts. After an error some logs may have
        been trimmed.

        Raises:
            OffsetOutOfRangeError: an offset above the end of its log.
            FatalError: a partition does not exist, or its topic has no delete policy.
            RetriableError: the broker is away; the logs may have been trimmed.
        """
        ...

    async def cluster_id(self) -> str:
        """The cluster's own id; no two clusters share one."""
        ...

    async def broker_figures(self, *, up_only: bool = False) -> BrokerFigures:
        """The numbers of brokers that are up and known, and a topic's replicas by default.

        With `up_only` only the first is asked for, by one small request; the others are 0.
        """
        ...

    async def list_topics(self) -> list[str]:
        """Names of all topics that are not Kafka's own, ascending."""
        ...

    async def topic_overrides(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Configs set on the topics themselves, by name; missing topics are left out."""
        ...

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Adds partitions to a topic until it has at least `partition_count`.

        Once it returns, every broker that can be asked knows the partitions and their leaders.

        Raises:
            FatalError: the topic does not exist.
            RetriableError: the broker is away; the partitions may have been added.
        """
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...
