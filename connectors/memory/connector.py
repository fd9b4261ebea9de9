"""The memory connector: writers, readers and admins of one memory broker.

*Source*: connectors.ports.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence

from stilltide.connectors.chance import Chance, SystemChance
from stilltide.connectors.clock import Clock, SystemClock
from stilltide.connectors.errors import (
    ActiveGroupError,
    FatalError,
    MissingTopicError,
    OffsetOutOfRangeError,
)
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.copying import MemoryColumnReader, MemoryCopyWriter
from stilltide.connectors.memory.log import Topic
from stilltide.connectors.memory.reader import MemoryGroupReader, MemoryReader
from stilltide.connectors.memory.writer import MemoryTransactionalWriter, MemoryWriter
from stilltide.connectors.ports.admin import TopicDescription, check_specs, check_topic
from stilltide.connectors.ports.connector import (
    METADATA_MAX_AGE_S,
    GroupDescription,
    MemberDescription,
)
from stilltide.connectors.ports.readers import Committed, Fetching, check_metadata
from stilltide.schemas.topics import PREFIX, Broker, BrokerFigures, PartitionReplicas, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class MemoryConnector:
    """The connector of a memory broker for links, groups and topics.

    Args:
        broker: the broker, which connectors of the same loop may share.
        writer_records_max: number of queued records at which a writer refuses an append.
        clock: clocks of what uses the broker; None: those of the machine.
        chance: chance of what uses the broker; None: that of the operating system.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        writer_records_max: int = 100_000,
        clock: Clock | None = None,
        chance: Chance | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self.chance = chance or SystemChance()
        self._broker = broker
        self._writer_records_max = writer_records_max

    def own_id(self, name: str) -> str:
        """The name of a group, or a transactional id, of Stilltide's own."""
        return PREFIX + name

    def writer(self, client_id: str, *, linger_ms: float = 0) -> MemoryWriter:
        """A writer; it never lingers."""
        del linger_ms
        return MemoryWriter(self._broker, client_id, self._writer_records_max)

    def transactional_writer(self, transactional_id: str) -> MemoryTransactionalWriter:
        """A writer of sets of records, each written completely or not at all."""
        return MemoryTransactionalWriter(self._broker, transactional_id)

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> MemoryReader:
        """A reader of named partitions; see `Connector.reader`."""
        del fetching  # without a network, fetches need no tuning
        return MemoryReader(self._broker, client_id, committed=committed, timestamps=timestamps)

    def column_reader(self, client_id: str) -> MemoryColumnReader:
        """A reader of columns of committed native data."""
        return MemoryColumnReader(self._broker, client_id)

    def copy_writer(self, transactional_id: str) -> MemoryCopyWriter:
        """A writer of large native transactions."""
        return MemoryCopyWriter(self._broker, transactional_id)

    def native_transactions(self, client_id: str) -> None:
        """None: the memory broker ends a transaction on all its partitions at once."""
        del client_id

    def group_reader(
        self,
        client_id: str,
        group: str,
        *,
        from_start: bool = True,
        since_ms: int | None = None,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> MemoryGroupReader:
        """A group's reader of committed data; see `Connector.group_reader`."""
        return MemoryGroupReader(
            self._broker,
            client_id,
            group,
            from_start=from_start if since_ms is None else since_ms <= 0,
            metadata_max_age_s=metadata_max_age_s,
        )

    def admin(self) -> "MemoryAdmin":
        """An admin."""
        return MemoryAdmin(self._broker)

    def topic_admin(self) -> "MemoryTopicAdmin":
        """An admin of the replicas and configs of topics."""
        return MemoryTopicAdmin(self._broker)

    def group_admin(self) -> "MemoryGroupAdmin":
        """An admin of consumer groups."""
        return MemoryGroupAdmin(self._broker)


class MemoryAdmin:
    """A `LogAdmin`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Creates missing topics and verifies the others; see `LogAdmin.ensure_topics`."""
        check_specs(specs)
        self._broker.check_up()
        for spec in specs:
            if spec.name not in self._broker.topics:
                self._broker.create_topic(spec)
            topic = self._broker.topics[spec.name]
            check_topic(spec, topic.description.partition_count, topic.configs)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name; a missing one is not in the answer."""
        self._broker.check_up()
        return {name: topic.description for name, topic in self._topics(names).items()}

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """The configs of the topics that exist; see `LogAdmin.topic_configs`."""
        self._broker.check_up()
        return {name: dict(topic.configs) for name, topic in self._topics(names).items()}

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets, or last stable offsets when `committed`."""
        self._broker.check_up()
        logs = {data: self._broker.log(data) for data in partitions}
        return {
            data: log.stable_end if committed else log.end
            for data, log in logs.items()
            if log is not None
        }

    async def start_offsets(
        self, partitions: Sequence[TopicPartition], *, since_ms: int | None = None
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets, or offsets of a time; the broker has no clock, so all times are 0."""
        self._broker.check_up()
        logs = {data: self._broker.log(data) for data in partitions}
        return {
            data: log.start if since_ms is None or since_ms <= 0 else Offset(log.end)
            for data, log in logs.items()
            if log is not None
        }

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Moves log starts up; see `LogAdmin.delete_records`."""
        self._broker.check_up()
        for data, offset in before.items():
            log, topic = self._broker.log(data), self._broker.topics.get(data.topic)
            if log is None or topic is None:
                raise FatalError(f"{data} does not exist", hint="create the topic")
            if "delete" not in topic.configs["cleanup.policy"]:
                raise FatalError(f"topic {data.topic} has no delete policy")
            if offset > log.end:
                raise OffsetOutOfRangeError(
                    f"cannot delete records before {data}@{offset}",
                    detail=f"the log ends at {log.end}",
                )
            self._broker.delete_records(data, offset)

    async def cluster_id(self) -> str:
        """The broker's cluster id."""
        self._broker.check_up()
        return self._broker.cluster_id

    async def broker_figures(self, *, up_only: bool = False) -> BrokerFigures:
        """The figures that the broker was made with."""
        self._broker.check_up()
        figures = self._broker.figures
        return BrokerFigures(figures.brokers, 0) if up_only else figures

    async def list_topics(self) -> list[str]:
        """Names of all topics."""
        self._broker.check_up()
        return sorted(self._broker.topics)

    async def topic_overrides(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """The configs that topics were created with, by topic."""
        self._broker.check_up()
        return {name: dict(topic.set_configs) for name, topic in self._topics(names).items()}

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Adds partitions to a topic, up to `partition_count`; see `LogAdmin.add_partitions`."""
        self._broker.check_up()
        if name not in self._broker.topics:
            raise FatalError(f"topic {name} does not exist", hint="create the topic")
        self._broker.add_partitions(name, partition_count)

    async def close(self) -> None:
        """Does nothing: an admin holds no resources."""

    def _topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """The topics with these names that exist, by name."""
        topics = self._broker.topics
        return {name: topics[name] for name in names if name in topics}


class MemoryTopicAdmin:
    """A `TopicAdmin`. All brokers are up or down together, and every replica is in sync."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def brokers(self) -> list[Broker]:
        """As many brokers as the figures of the memory broker say; ids from 1 on."""
        self._broker.check_up()
        return [Broker(number + 1) for number in range(self._broker.figures.brokers)]

    async def placements(self, names: Sequence[str]) -> dict[str, tuple[PartitionReplicas, ...]]:
        """Replicas on consecutive brokers, from another one on for each partition."""
        self._broker.check_up()
        count = self._broker.figures.brokers
        placements: dict[str, tuple[PartitionReplicas, ...]] = {}
        for name in names:
            if (topic := self._broker.topics.get(name)) is not None:
                description = topic.description
                replicas = [
                    tuple((number + more) % count + 1 for more in range(description.replica_count))
                    for number in range(description.partition_count)
                ]
                placements[name] = tuple(PartitionReplicas(held, held) for held in replicas)
        return placements

    async def sizes(self, names: Sequence[str]) -> dict[TopicPartition, int]:
        """Bytes of keys and values; see `TopicAdmin.sizes`."""
        self._broker.check_up()
        return {
            data: sum(
                len(record.key or b"") + len(record.value or b"")
                for record in self._broker.records(data)
            )
            for name in names
            if (topic := self._broker.topics.get(name)) is not None
            for data in (
                TopicPartition(name, number) for number in range(topic.description.partition_count)
            )
        }

    async def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Sets configs of topics; see `TopicAdmin.alter_configs`."""
        self._broker.check_up()
        for name, configs in changes.items():
            topic = self._broker.topics.get(name)
            if topic is None:
                raise FatalError(f"topic {name} does not exist", hint="create the topic")
            topic.alter(configs)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics; see `TopicAdmin.delete_topics`."""
        self._broker.check_up()
        for name in names:
            if name not in self._broker.topics:
                raise MissingTopicError(f"topic {name} does not exist", hint="correct the name")
            self._broker.delete_topic(name)

    async def close(self) -> None:
        """Does nothing: an admin holds no resources."""


HEARTBEAT_S = 0.05
"""After this time a member that was removed from its group joins again."""


class MemoryGroupAdmin:
    """A `GroupAdmin`."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def committed(
        self, groups: Collection[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, Committed]]:
        """The offsets that groups have committed; see `GroupAdmin.committed`."""
        self._broker.check_up()
        committed = {group: self._broker.group(group).committed for group in groups}
        return {
            group: {data: commits[data] for data in partitions if data in commits}
            for group, commits in committed.items()
        }

    async def topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """The topics that exist; see `GroupAdmin.topics`."""
        self._broker.check_up()
        topics = self._broker.topics
        return {name: topics[name].description for name in names if name in topics}

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets; see `GroupAdmin.log_starts`."""
        self._broker.check_up()
        logs = {data: self._broker.log(data) for data in partitions}
        return {data: log.start for data, log in logs.items() if log is not None}

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets; see `GroupAdmin.log_ends`."""
        self._broker.check_up()
        logs = {data: self._broker.log(data) for data in partitions}
        return {data: log.end for data, log in logs.items() if log is not None}

    async def listed(self) -> set[str]:
        """The groups with members or commits; see `GroupAdmin.listed`."""
        self._broker.check_up()
        groups = self._broker.groups.items()
        return {name for name, group in groups if group.is_active or group.committed}

    async def commits_of(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        """Everything that groups have committed; see `GroupAdmin.commits_of`."""
        self._broker.check_up()
        return {group: dict(self._broker.group(group).committed) for group in groups}

    async def topics_of(self, groups: Iterable[str]) -> dict[str, set[str]]:
        """The topics of which groups have committed offsets; see `GroupAdmin.topics_of`."""
        commits = await self.commits_of(groups)
        return {group: {data.topic for data in held} for group, held in commits.items()}

    async def active(self, groups: Collection[str]) -> set[str]:
        """The groups that have members; see `GroupAdmin.active`."""
        self._broker.check_up()
        return {group for group in groups if self._broker.group(group).is_active}

    async def members(self, group: str) -> set[str]:
        """Ids of the group's members; see `GroupAdmin.members`."""
        self._broker.check_up()
        return self._broker.group(group).member_ids

    async def described(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """State and members of groups; see `GroupAdmin.described`."""
        known = await self.listed()
        members = {group: await self.described_members(group) for group in groups}
        return {
            group: GroupDescription(
                "Stable" if of_group else "Empty" if group in known else "Dead", tuple(of_group)
            )
            for group, of_group in members.items()
        }

    async def described_members(self, group: str) -> list[MemberDescription]:
        """The group's members; see `GroupAdmin.described_members`."""
        self._broker.check_up()
        return self._broker.group(group).described

    async def remove_members(self, group: str) -> None:
        """Removes all members, which join again soon; see `GroupAdmin.remove_members`."""
        self._broker.check_up()
        for member in self._broker.group(group).remove_members():
            asyncio.get_running_loop().call_later(HEARTBEAT_S, member.join_again)

    async def move(self, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
        """Commits for a group without members; see `GroupAdmin.move`."""
        self._broker.check_up()
        check_metadata({data: it.metadata for data, it in positions.items()})
        for data in positions:
            if self._broker.log(data) is None:
                raise FatalError(f"{data} does not exist", hint="create the topic")
        if self._broker.group(group).is_active:
            raise ActiveGroupError(f"group {group} has members", hint="stop them, then try again")
        self._broker.group(group).committed.update(positions)
        self._broker.watchers.notify()

    async def close(self) -> None:
        """Does nothing: an admin holds no resources."""
