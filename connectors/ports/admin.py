"""Ports: topics and offsets of one cluster, its user's rights, Kafka's own transactions.

*Source*: docs/protocols C17; KIP-664. Below the ports are the checks of `ensure_topics`, which hold
for every connector.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from stilltide.connectors.errors import FatalError, NotAuthorizedError
from stilltide.connectors.names import check_config, check_topic_name
from stilltide.schemas.native.transactions import (
    ActiveProducer,
    DescribedTransaction,
    ListedTransaction,
)
from stilltide.schemas.rights import Operation
from stilltide.schemas.topics import BrokerFigures, TopicSpec, same_config
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


class RightsAsker(Protocol):
    """Asks a cluster for the rights of this user; a cluster without an authorizer allows all."""

    async def missing(
        self,
        topics: Collection[str],
        operations: Collection[Operation],
        group: str,
    ) -> list[NotAuthorizedError]:
        """The rights that are not there; a topic that does not exist lacks none.

        Args:
            topics: names of topics.
            operations: what this process does with each of them.
            group: a group of which this process is a member, which needs Read.

        Raises:
            ConnectorError: the cluster is away, or does not answer.
        """
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...


class NativeTransactions(Protocol):
    """The brokers' own view of Kafka's transactions, and the tool for those that hang (KIP-664).

    Only `connectors.kafka` has one: the memory broker has no transaction coordinators, producer
    ids or markers, and a fake of their disagreements would prove nothing about brokers.

    Every method raises `RetriableError` when a broker is away, or a coordinator moves, for longer
    than the request time-out, and `FatalError` when not authorised, or after `close`.
    """

    async def list_transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        older_than_ms: int | None = None,
    ) -> list[ListedTransaction]:
        """The transactional ids of all coordinators, ascending; an empty filter selects all.

        The list is complete: the call raises if a coordinator has no leader.

        Args:
            states: states to select, of `TransactionState`; a broker ignores unknown ones.
            producer_ids: present producer ids to select.
            older_than_ms: age above which the open transaction of an id is selected.

        Raises:
            FatalError: the brokers (before Kafka 3.8) cannot filter by age.
        """
        ...

    async def describe_transaction(self, transactional_id: str) -> DescribedTransaction | None:
        """The id's state at its coordinator; None when the coordinator does not know the id."""
        ...

    async def producers(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that each partition's leader remembers, ascending.

        Raises:
            FatalError: a partition does not exist.
        """
        ...

    async def write_marker(
        self, data: TopicPartition, producer: ActiveProducer, *, committed: bool
    ) -> None:
        """Ends the producer's open transaction on one partition with a COMMIT or ABORT marker.

        Neither coordinator nor producer learns of it, so use it only for a transaction that no
        coordinator has: of any other, the rest may end otherwise. Returns when the marker is on all
        in-sync replicas.

        Raises:
            FencedError: the producer has a newer epoch there; nothing was written.
            FatalError: a coordinator with a newer epoch has written there; nothing was written.
            RetriableError: the marker may have been written.
        """
        ...

    async def close(self) -> None:
        """Ends connections; what waits raises `FatalError`. Safe to call twice."""
        ...


PARTITIONS_MAX = 100_000
"""The most partitions of a topic that the Kafka client accepts."""


def check_specs(specs: Sequence[TopicSpec]) -> None:
    """Passes specs that some cluster could meet.

    Raises:
        FatalError: a number of partitions out of bounds, or a topic named twice.
        InvalidTextError: no topic can have a name, or no config a name or a value.
    """
    names: set[str] = set()
    for spec in specs:
        check_topic_name(spec.name)
        for name, value in spec.created_configs.items():
            check_config(spec.name, name, value)
        if not 1 <= spec.partition_count <= PARTITIONS_MAX:
            raise FatalError(
                f"topic {spec.name} would have {spec.partition_count} partitions",
                hint=f"configure 1 to {PARTITIONS_MAX} partitions",
            )
        if spec.name in names:
            raise FatalError(f"topic {spec.name} is named twice", hint="name each topic once")
        names.add(spec.name)


def check_topic(spec: TopicSpec, partition_count: int, configs: Mapping[str, str | None]) -> None:
    """Passes an existing topic that is as `spec` requires; wanted and other configs may differ.

    Raises:
        FatalError: other partitions or configs; names topic, config, and both values.
    """
    if partition_count != spec.partition_count:
        raise FatalError(
            f"topic {spec.name} has {partition_count} partitions, not {spec.partition_count}",
            detail="keys and transactions are placed by the number of partitions",
            hint="configure that number, or use another topic",
        )
    for name, required in spec.configs.items():
        value = configs.get(name)
        if not same_config(value, required):
            raise FatalError(
                f"topic {spec.name} has {name}={value}, not {required}",
                hint=f"kafka-configs.sh --alter --topic {spec.name} --add-config {name}={required}",
            )


def too_few_brokers(spec: TopicSpec, brokers: int) -> FatalError:
    """The error for a topic that needs more replicas than the cluster has brokers."""
    assert spec.replicas is not None
    count = spec.replicas.factor
    return FatalError(
        f"the topic would have {count} replicas, but the cluster has {_brokers(brokers)}",
        detail=f"{_brokers(count - brokers)} missing: each replica needs a broker of its own",
        hint=f"start more brokers, or set replication_factor to {brokers}",
        topic=spec.name,
    )


def _brokers(count: int) -> str:
    return "1 broker" if count == 1 else f"{count} brokers"
