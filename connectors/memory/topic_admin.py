"""Replicas and configs of the topics of a memory broker.

*Source*: connectors.ports.topics.
"""

from collections.abc import Mapping, Sequence

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.schemas.topics import Broker, Placement


class MemoryTopicAdmin:
    """A `TopicAdmin`. All brokers are up or down together, and every replica is in sync."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker

    async def brokers(self) -> list[Broker]:
        """As many brokers as the figures of the memory broker say; ids from 1 on."""
        self._broker.check_up()
        return [Broker(number + 1) for number in range(self._broker.figures.brokers)]

    async def placements(self, names: Sequence[str]) -> dict[str, tuple[Placement, ...]]:
        """Replicas on consecutive brokers, from another one on for each partition."""
        self._broker.check_up()
        count = self._broker.figures.brokers
        found: dict[str, tuple[Placement, ...]] = {}
        for name in names:
            if (topic := self._broker.topics.get(name)) is not None:
                description = topic.description
                replicas = [
                    tuple((number + more) % count + 1 for more in range(description.replica_count))
                    for number in range(description.partition_count)
                ]
                found[name] = tuple(Placement(held, held) for held in replicas)
        return found

    async def alter_configs(self, changes: Mapping[str, Mapping[str, str]]) -> None:
        """Sets configs of topics; see `TopicAdmin.alter_configs`."""
        self._broker.check_up()
        for name, configs in changes.items():
            topic = self._broker.topics.get(name)
            if topic is None:
                raise FatalError(f"topic {name} does not exist", hint="create the topic")
            topic.set_configs.update(configs)
            topic.configs.update(configs)

    async def close(self) -> None:
        """Does nothing: an admin holds no resources."""
