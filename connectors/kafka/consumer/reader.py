"""A reader of named partitions.

*Source*: connectors.ports, `LogReader`; docs/internals/kafka-clients.md, Consumers.

*Invariants*: after a call of `assign`, no record of an earlier assignment is returned.

A reader that shares a consumer changes to its own consumer for good when another reader reads the
same partition, or when the reader has fallen behind.
"""

from collections.abc import Iterable, Mapping, Sequence

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig, Options
from stilltide.connectors.kafka.consumer.assignments import Positions, ReaderSlot
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread
from stilltide.connectors.kafka.consumer.inbox import Inbox
from stilltide.connectors.kafka.consumer.messages import converted, timed
from stilltide.connectors.kafka.consumer.sharing import SharedConsumer, SharedConsumers
from stilltide.connectors.kafka.headers.reading import HeaderReading
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.schemas.values import Offset, TopicPartition


class KafkaReader:
    """A `LogReader`. To be used on the event loop of its first `assign` only.

    Args:
        config: the cluster.
        options: options of the reader's own consumer.
        timestamps: whether `read` returns each record as a `TimedRecord`.
        shared: the connector's shared consumers, and the options of the one for this reader; None:
            the reader has its own consumer from the start.
    """

    def __init__(
        self,
        config: KafkaConfig,
        options: Options,
        *,
        timestamps: bool,
        shared: tuple[SharedConsumers, Options] | None,
    ) -> None:
        self._converted = timed if timestamps else converted
        self._client_id = str(options["client.id"])
        self._config, self._options = config, options
        ahead_bytes = int(options["queued.max.messages.kbytes"]) * 1024  # as in the client's queue
        self._inbox = Inbox(config.reader_records_max, ahead_bytes)
        self._headers = HeaderReading(config, self._client_id, self._inbox)
        self._may_share = shared
        self._shared: SharedConsumer | None = None
        self._shared_slot = ReaderSlot(self._inbox, self._shown_out)
        self._own: ConsumerThread | None = None
        self._own_slot = ReaderSlot(self._inbox)
        self._paused = set[TopicPartition]()
        self._closed = False

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment; no partition is paused afterwards."""
        for data in positions:
            check_topic_name(data.topic)
        generation, wanted = self._inbox.next_generation(), dict(positions)
        self._paused.clear()
        await self._find_consumer(wanted)
        thread, slot = self._chosen()
        await thread.submit(lambda it: thread.assignments.assign(it, slot, wanted, generation))

    async def read(self) -> Sequence[Record | EndReached]:
        """The next records; see `LogReader.read`."""
        while True:
            own, slot = self._own, self._own_slot
            taken = await (self._inbox.take() if own is None else own.take(slot))
            records = self._headers.converted(taken, self._converted)
            if records is not None:
                return records
            await self._headers.recover()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions; records that were fetched already may still be returned."""
        chosen = set(partitions)
        self._paused |= chosen
        thread, slot = self._chosen()
        thread.pause(slot, chosen)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from their positions."""
        chosen = set(partitions)
        self._paused -= chosen
        thread, slot = self._chosen()
        thread.resume(slot, chosen)

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        self._closed = True
        self._inbox.close(self._closed_error())
        shared, self._shared = self._shared, None
        if shared is not None:
            await shared.leave(self._shared_slot)
        if self._own is not None:
            await self._own.close()

    async def _find_consumer(self, positions: Positions) -> None:
        """Chooses the consumer for these partitions: a shared one, or the reader's own."""
        if self._closed:
            raise self._closed_error()
        if self._own is not None:
            return
        joined = None
        if self._may_share is not None:
            consumers, options = self._may_share
            joined = consumers.join(options, self._shared_slot, positions)
        left, self._shared = self._shared, joined
        if joined is None:
            self._own = ConsumerThread(self._config, self._options, self._own_slot)
        if left is not None and left is not joined:
            await left.leave(self._shared_slot)

    def _chosen(self) -> tuple[ConsumerThread, ReaderSlot]:
        if self._own is not None:
            return self._own, self._own_slot
        if self._shared is None:
            if self._closed:
                raise self._closed_error()
            raise FatalError(f"reader {self._client_id} was assigned nothing yet")
        return self._shared.thread, self._shared_slot

    def _shown_out(self, generation: int, positions: Positions) -> None:
        """Reads on with the reader's own consumer; the shared consumer has dropped the reader."""
        if self._closed or self._shared is None or generation != self._inbox.generation:
            return  # another assignment was made since
        self._shared.held[self._shared_slot] = frozenset()
        own = self._own = ConsumerThread(self._config, self._options, self._own_slot)
        try:
            own.submit(lambda it: own.assignments.assign(it, self._own_slot, positions, generation))
            own.pause(self._own_slot, self._paused)
        except FatalError as error:
            self._inbox.fail(generation, error)

    def _closed_error(self) -> FatalError:
        return FatalError(f"reader {self._client_id} is closed")
