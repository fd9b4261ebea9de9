"""A reader of named partitions.

*Source*: connectors.base, `LogReader`; kafka.md 2 (the end of a partition under read_committed).

*Invariants*: once `assign` was called, no record of an earlier assignment is returned.
"""

from collections.abc import Iterable, Mapping, Sequence

from connectors.base import EndReached, Record
from connectors.kafka.config import KafkaConfig, Options
from connectors.kafka.consuming import ConsumerThread
from connectors.kafka.messages import converted, timed
from schemas.values import Offset, TopicPartition


class KafkaReader:
    """A `LogReader`. Belongs to the loop of its first `assign`."""

    def __init__(self, config: KafkaConfig, options: Options, *, timestamps: bool) -> None:
        self._converted = timed if timestamps else converted
        self._thread = ConsumerThread(config, options)

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces what is read; nothing is paused afterwards."""
        inbox = self._thread.inbox
        inbox.generation += 1
        inbox.clear()
        generation, wanted = inbox.generation, dict(positions)
        await self._thread.submit(lambda it: self._thread.assign(it, wanted, generation))

    async def read(self) -> Sequence[Record | EndReached]:
        """The next records; see `LogReader.read`."""
        return self._converted(await self._thread.inbox.take())

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching; what was fetched already may still be returned."""
        self._thread.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from where they stand."""
        self._thread.resume(partitions)

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        await self._thread.close()
