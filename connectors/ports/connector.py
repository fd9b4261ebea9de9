"""Ports: one cluster's writers, readers and admins; groups from outside; replicas and configs.

*Source*: docs/protocols H8 (configs of topics that links carry). The contract tests cover every
implementation.
"""

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol, TypeVar

from stilltide.connectors.chance import Chance
from stilltide.connectors.clock import Clock
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.readers import Committed, Fetching, GroupReader, LogReader
from stilltide.connectors.ports.writers import LogWriter, TransactionalWriter
from stilltide.schemas.topics import Broker, PartitionReplicas
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

METADATA_MAX_AGE_S = 300.0
"""How old the description of a topic may become; the default of Kafka's own clients."""


class Closeable(Protocol):
    """What holds connections until it is closed."""

    async def close(self) -> None:
        """Releases the connections."""
        ...


T = TypeVar("T", bound=Closeable)


@asynccontextmanager
async def closing(opened: T) -> AsyncGenerator[T]:
    """What holds connections, during the block; closed at its end, whatever happens."""
    try:
        yield opened
    finally:
        await opened.close()


class Connector(Protocol):
    """Makes writers, readers and admins of one cluster, and has the ports to time and chance."""

    @property
    def clock(self) -> Clock:
        """The clocks of this process, for all that uses the cluster."""
        ...

    @property
    def chance(self) -> Chance:
        """Where ids, secrets and random delays of all that uses the cluster come from."""
        ...

    def own_id(self, name: str) -> str:
        """The name of a group, or a transactional id, of Stilltide's own processes (C15).

        Begins with `stilltide.`, so that one prefixed right covers all of them.
        """
        ...

    def writer(self, client_id: str, *, linger_ms: float = 0) -> LogWriter:
        """A writer: idempotent, acknowledged by all in-sync replicas."""
        ...

    def transactional_writer(self, transactional_id: str) -> TransactionalWriter:
        """A writer of sets of records by native transactions; see `TransactionalWriter`."""
        ...

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> LogReader:
        """A reader of named partitions; `committed` hides open and aborted native transactions.

        With `timestamps`, records are `TimedRecord`.
        """
        ...

    def group_reader(
        self,
        client_id: str,
        group: str,
        *,
        from_start: bool = True,
        since_ms: int | None = None,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> GroupReader:
        """A group's reader of committed data.

        Without a commit for a partition it begins at the log start, at the end, or at a time, as
        `LogAdmin.start_offsets` finds it. A partition that
        the topic has gained since begins at the log start in any case: a partition that this reader
        did not find at its first assignment, or one in a topic of which the group has committed
        other partitions.

        Args:
            client_id: name of the reader at the brokers.
            group: name of the consumer group.
            from_start: whether to begin at the log start.
            since_ms: time at which to begin, instead of `from_start`; milliseconds since 1970.
            metadata_max_age_s: longest time until the group shares out an added partition, > 0.
        """
        ...

    def admin(self) -> LogAdmin:
        """An admin."""
        ...


class MemberDescription(NamedTuple):
    """A member of a group, as the group's coordinator knows it.

    Attributes:
        member_id: Kafka's id of the member.
        client_id: the client's name for itself.
        host: address from which the member is connected.
        partitions: the partitions that the last rebalance has given to it, ascending.
    """

    member_id: str
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    """A group as its coordinator knows it.

    Attributes:
        state: Kafka's word for its state, such as `Stable`, `Empty` or `Dead`: not there.
        members: its members, by host and id.
    """

    state: str
    members: tuple[MemberDescription, ...]


class GroupAdmin(Protocol):
    """Consumer groups seen from outside: committed offsets, and whether a group has members.

    A group whose consumers choose their partitions themselves has no members while they commit.
    """

    async def committed(
        self, groups: Collection[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, Committed]]:
        """The offsets that each group has committed for these partitions; none of them need exist.

        Raises:
            RetriableError: the broker is away.
            FatalError: not authorised.
        """
        ...

    async def topics(self, names: Collection[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name: for those who ask for the same ones again and again.

        Raises as `committed`.
        """
        ...

    async def log_starts(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets of the partitions that exist: for who asks again and again.

        Raises as `committed`.
        """
        ...

    async def log_ends(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets (high watermarks) of the partitions that exist, as `log_starts`."""
        ...

    async def listed(self) -> set[str]:
        """All groups of consumers with members or commits that the caller may describe.

        Raises as `committed`.
        """
        ...

    async def commits_of(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, Committed]]:
        """All offsets that each group has committed, of any topic; raises as `committed`."""
        ...

    async def topics_of(self, groups: Iterable[str]) -> dict[str, set[str]]:
        """The topics of which each group has committed an offset; raises as `committed`."""
        ...

    async def active(self, groups: Collection[str]) -> set[str]:
        """The groups among these that have members; raises as `committed`."""
        ...

    async def members(self, group: str) -> set[str]:
        """Kafka's ids of the group's members; raises as `committed`."""
        ...

    async def described(self, groups: Collection[str]) -> dict[str, GroupDescription]:
        """State and members of each group; raises as `committed`."""
        ...

    async def described_members(self, group: str) -> list[MemberDescription]:
        """The group's members, by host and id; raises as `committed`.

        Until a rebalance has ended, its members have no partitions.
        """
        ...

    async def remove_members(self, group: str) -> None:
        """Removes all members from a group; without members it does nothing. Raises as `committed`.

        A removed member's commits are refused. A consumer that still runs notices at its next
        heartbeat, and joins the group again.
        """
        ...

    async def move(self, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
        """Commits for a group without members; creates the group if it does not exist.

        Neither direction nor the bounds of the log are checked.

        Raises:
            ActiveGroupError: the group has members; nothing was committed.
            FatalError: no such partition, not authorised, or metadata that is too long.
            RetriableError: the broker is away; the commit may have been made.
        """
        ...

    async def close(self) -> None:
        """Releases connections; safe to call twice."""
        ...


class GroupConnector(Connector, Protocol):
    """A connector that also has an admin of consumer groups."""

    def group_admin(self) -> GroupAdmin:
        """An admin of consumer groups."""
        ...


class TopicAdmin(Protocol):
    """Replicas and configs of topics, Kafka's own topics included.

    Every method raises `RetriableError` if the cluster is away, and `FatalError` if the principal
    lacks the right.
    """

    async def brokers(self) -> list[Broker]:
        """The brokers that are up, ascending by id."""
        ...

    async def placements(self, names: Sequence[str]) -> dict[str, tuple[PartitionReplicas, ...]]:
        """The placement of each partition, by number, of the topics that exist."""
        ...

    async def sizes(self, names: Sequence[str]) -> dict[TopicPartition, int]:
        """The size of each partition on disk, in bytes: that of its largest replica.

        Topics that do not exist are left out, and so are replicas on brokers that are away.
        """
        ...

    async def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Sets configs of topics, by topic and config; all other configs keep their values.

        None takes a topic's own value away, so that the cluster's default holds again. Once the
        call returns, `LogAdmin.topic_configs` and `topic_overrides` report the new values.

        Raises:
            FatalError: a topic does not exist, or a value is refused; some topics may have been
                altered.
            RetriableError: the cluster is away; some topics may have been altered.
        """
        ...

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics and all their records; once it returns, `placements` has none of them.

        Raises:
            MissingTopicError: a topic does not exist; others may have been deleted.
            RetriableError: the cluster is away; some topics may have been deleted.
        """
        ...

    async def close(self) -> None:
        """Releases connections; safe to call twice."""
        ...


class TopicConnector(Connector, Protocol):
    """A connector that also has an admin of topics."""

    def topic_admin(self) -> TopicAdmin:
        """An admin of the replicas and configs of topics."""
        ...


class ClusterConnector(GroupConnector, TopicConnector, Protocol):
    """A connector with admins of topics and of groups."""
