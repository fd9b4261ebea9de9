"""A reader of named partitions.

*Source*: connectors.ports, `LogReader`; docs/internals/kafka-clients.md, Consumers.

*Invariants*: after a call of `assign`, no record of an earlier assignment is returned.

A reader that shares a consumer changes to its own consumer for good when another reader reads the
same partition, or when the reader has fallen behind.

Readers of one connector that share a consumer.

*Source*: measured. A consumer sends ten fetches a second, and looks for orders as often, even if no
record arrives; a worker reads dozens of short logs, for which one consumer suffices.

*Invariants*: readers that share a consumer read different partitions. A reader that falls behind
goes on with its own consumer, from the same positions.

To be used on the event loop only.

*Source*: connectors.ports.copying, `ColumnReader`. Reading columns costs half as much as reading
records, because no object is made for a record in addition to the client's own.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

from confluent_kafka import Message

from stilltide.connectors.errors import ConnectorError, FatalError
from stilltide.connectors.kafka.config import KafkaConfig, Options
from stilltide.connectors.kafka.consumer.assignments import Positions, ReaderSlot
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread
from stilltide.connectors.kafka.consumer.inbox import (
    Conversion,
    HeaderReading,
    HeadersOf,
    Inbox,
    Item,
    by_partition,
)
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.copying import Columns
from stilltide.connectors.ports.readers import EndReached
from stilltide.schemas.values import Offset, TopicPartition

T = TypeVar("T")


@dataclass(eq=False)
class SharedConsumer:
    """A consumer, its loop, and the partitions that each reader reads with it."""

    thread: ConsumerThread
    loop: asyncio.AbstractEventLoop
    partitions_of: dict[ReaderSlot, frozenset[TopicPartition]] = field(
        default_factory=dict[ReaderSlot, frozenset[TopicPartition]]
    )

    def admits(self, slot: ReaderSlot, partitions: Collection[TopicPartition]) -> bool:
        """Whether no other reader of the consumer reads any of the partitions."""
        others = (read for other, read in self.partitions_of.items() if other is not slot)
        return all(read.isdisjoint(partitions) for read in others)

    async def leave(self, slot: ReaderSlot) -> None:
        """Stops reading for this reader; closes the consumer after its last reader."""
        self.partitions_of.pop(slot, None)
        if not self.partitions_of:
            await self.thread.close()
            return
        with contextlib.suppress(ConnectorError):  # a dead consumer has stopped anyway
            await self.thread.submit(lambda consumer: self.thread.assignments.leave(consumer, slot))


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
        shared.partitions_of[slot] = frozenset(partitions)
        return shared


class KafkaReader(Generic[T]):
    """A `LogReader` or `ColumnReader`; to be used on the event loop of its first `assign` only.

    Args:
        config: the cluster.
        options: options of the reader's own consumer.
        convert: makes what `read` returns of what the client returns.
        shared: the connector's shared consumers, and the options of the one for this reader; None:
            the reader has its own consumer from the start.
    """

    def __init__(
        self,
        config: KafkaConfig,
        options: Options,
        convert: Conversion[Sequence[T | EndReached]],
        shared: tuple[SharedConsumers, Options] | None,
    ) -> None:
        self._convert = convert
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

    async def read(self) -> Sequence[T | EndReached]:
        """The next records; see `LogReader.read`."""
        while True:
            own, slot = self._own, self._own_slot
            taken = await (self._inbox.take() if own is None else own.take(slot))
            records = self._headers.converted(taken, self._convert)
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
        self._shared.partitions_of[self._shared_slot] = frozenset()
        own = self._own = ConsumerThread(self._config, self._options, self._own_slot)
        try:
            own.submit(lambda it: own.assignments.assign(it, self._own_slot, positions, generation))
            own.pause(self._own_slot, self._paused)
        except FatalError as error:
            self._inbox.fail(generation, error)

    def _closed_error(self) -> FatalError:
        return FatalError(f"reader {self._client_id} is closed")


def by_columns(items: Sequence[Item], headers_of: HeadersOf) -> list[Columns | EndReached]:
    """Messages and ends as a column reader returns them: in runs of one partition."""
    return [
        part if isinstance(part, EndReached) else _columns(*part, headers_of)
        for part in by_partition(items)
    ]


def _columns(data: TopicPartition, messages: Sequence[Message], headers_of: HeadersOf) -> Columns:
    return Columns(
        data,
        cast("list[Offset]", list(map(Message.offset, messages))),
        headers_of(messages),
        cast("Any", list(map(Message.key, messages))),
        cast("Any", list(map(Message.value, messages))),
        [made_ms for _, made_ms in map(Message.timestamp, messages)],
    )
