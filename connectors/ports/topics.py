"""Port: where the replicas of topics are, and their configs, for operators.

*Source*: connectors.ports.connector; the contract tests cover both implementations.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from stilltide.connectors.ports.connector import Connector
from stilltide.schemas.topics import Broker, PartitionReplicas


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

    async def close(self) -> None:
        """Releases connections; safe to call twice."""
        ...


class TopicConnector(Connector, Protocol):
    """A connector that also has an admin of topics."""

    def topic_admin(self) -> TopicAdmin:
        """An admin of the replicas and configs of topics."""
        ...
