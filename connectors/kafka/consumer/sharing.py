"""Readers of one connector that share a consumer.

*Source*: measured. A consumer sends ten fetches a second, and looks for orders as often, even if no
record arrives; a worker reads dozens of short logs, for which one consumer suffices.

*Invariants*: readers that share a consumer read different partitions. A reader that falls behind
goes on with its own consumer, from the same positions.

To be used on the event loop only.
"""

import asyncio
import contextlib
from collections.abc import Collection
from dataclasses import dataclass, field

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.kafka.config import KafkaConfig, Options
from stilltide.connectors.kafka.consumer.assignments import ReaderSlot
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread
from stilltide.schemas.values import TopicPartition


@dataclass(eq=False)
class SharedConsumer:
    """A consumer, its loop, and the partitions that each reader reads with it."""

    thread: ConsumerThread
    loop: asyncio.AbstractEventLoop
    held: dict[ReaderSlot, frozenset[TopicPartition]] = field(
        default_factory=dict[ReaderSlot, frozenset[TopicPartition]]
    )

    def admits(self, slot: ReaderSlot, partitions: Collection[TopicPartition]) -> bool:
        """Whether no other reader of the consumer reads any of the partitions."""
        others = (held for one, held in self.held.items() if one is not slot)
        return all(held.isdisjoint(partitions) for held in others)

    async def leave(self, slot: ReaderSlot) -> None:
        """Stops reading for this reader; closes the consumer after its last reader."""
        self.held.pop(slot, None)
        if not self.held:
            await self.thread.close()
            return
        with contextlib.suppress(ConnectorError):  # a dead consumer has stopped anyway
            await self.thread.submit(lambda it: self.thread.assignments.leave(it, slot))


class SharedConsumers:
    """The shared consumers of one connector: one for each set of options."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._consumers: dict[frozenset[tuple[str, object]], SharedConsumer] = {}

    def join(
        self, options: Options, slot: ReaderSlot, partitions: Collection[TopicPartition]
    ) -> SharedConsumer | None:
        """The consumer that reads these partitions for the slot from now on.

        None: another reader of the shared consumer reads one of the partitions.
        """
        key, loop = frozenset(options.items()), asyncio.get_running_loop()
        shared = self._consumers.get(key)
        if shared is None or shared.thread.ended or shared.loop is not loop:
            shared = SharedConsumer(ConsumerThread(self._config, options), loop)
            self._consumers[key] = shared
        if not shared.admits(slot, partitions):
            return None
        shared.held[slot] = frozenset(partitions)
        return shared
