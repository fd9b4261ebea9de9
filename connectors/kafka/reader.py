"""A reader of named partitions.

*Source*: connectors.base, `LogReader`; kafka.md 2 (the end of a partition under read_committed).

*Invariants*: once `assign` was called, no record of an earlier assignment is returned.
"""

from collections.abc import Iterable, Mapping, Sequence

from confluent_kafka import TopicPartition as ClientPartition

from connectors.base import EndReached, Record
from connectors.kafka.config import KafkaConfig, reader_options
from connectors.kafka.consuming import ConsumerThread
from schemas.values import Offset, TopicPartition


class KafkaReader:
    """A `LogReader`. Belongs to the loop of its first `assign`."""

    def __init__(self, config: KafkaConfig, client_id: str, *, committed: bool) -> None:
        self._thread = ConsumerThread(
            config, reader_options(config, client_id, committed=committed)
        )
        self._paused: set[TopicPartition] = set()
        self._assigning = 0

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces what is read; nothing is paused afterwards."""
        self._paused.clear()
        inbox = self._thread.inbox
        inbox.generation += 1
        inbox.clear()
        generation, wanted = inbox.generation, dict(positions)
        self._assigning += 1
        try:
            await self._thread.order(lambda it: self._thread.assign(it, wanted, generation))
        finally:
            self._assigning -= 1
        if self._paused:
            self.pause(self._paused)

    async def read(self) -> Sequence[Record | EndReached]:
        """The next records; see `LogReader.read`."""
        return await self._thread.inbox.take()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching; what was fetched already may still be returned."""
        wanted = list(partitions)
        self._paused.update(wanted)
        if not self._assigning:
            self._thread.start().pause(client_names(wanted))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from where they stand."""
        wanted = self._paused.intersection(partitions)
        self._paused -= wanted
        if wanted and not self._assigning:
            self._thread.start().resume(client_names(wanted))

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        await self._thread.close()


def client_names(partitions: Iterable[TopicPartition]) -> list[ClientPartition]:
    """Partitions as the client library takes them."""
    return [ClientPartition(data[0], data[1]) for data in partitions]
