"""What the cluster allows this process's user, as the cluster itself says.

*Source*: docs/protocols C17.
"""

from collections.abc import Collection
from typing import Protocol

from stilltide.connectors.errors import NotAuthorizedError
from stilltide.schemas.rights import Operation


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
