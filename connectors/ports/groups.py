"""Port: consumer groups seen from outside.

*Source*: connectors.ports.connector; the contract tests cover both implementations.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from stilltide.connectors.ports.admin import TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import TopicPartition


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
