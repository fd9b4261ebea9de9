"""Port: consumer groups seen from outside.

*Source*: connectors.ports, which says what a connector is; the contract suite proves both
implementations.
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.values import TopicPartition


class GroupAdmin(Protocol):
    """Consumer groups seen from outside: what they have committed, and whether they have members.

    A group whose consumers name their partitions themselves has no members while they commit.
    """

    async def committed(
        self, groups: Collection[str], partitions: Collection[TopicPartition]
    ) -> dict[str, dict[TopicPartition, Committed]]:
        """What each of these groups has committed for these, as far as it has; none need exist.

        Raises:
            RetriableError: the broker is away.
            FatalError: not authorised.
        """
        ...

    async def active(self, groups: Collection[str]) -> set[str]:
        """Those of them that have members; raises as `committed`."""
        ...

    async def move(self, group: str, positions: Mapping[TopicPartition, Committed]) -> None:
        """Commits for a group without members; one that does not exist comes to be.

        Neither direction nor the bounds of the log are checked.

        Raises:
            ActiveGroupError: it has members; nothing was committed.
            FatalError: no such partition, not authorised, or metadata that is too long.
            RetriableError: the broker is away; it may have been done.
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
