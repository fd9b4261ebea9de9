"""A reader of columns.

*Source*: connectors.ports.copying, `ColumnReader`. Reading columns costs half as much as reading
records, because no object is made for a record in addition to the client's own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from confluent_kafka import Message

from stilltide.connectors.kafka.config import KafkaConfig, reader_options
from stilltide.connectors.kafka.consumer.assignments import ReaderSlot
from stilltide.connectors.kafka.consumer.consuming import ConsumerThread
from stilltide.connectors.kafka.consumer.inbox import Inbox, Item
from stilltide.connectors.kafka.consumer.messages import by_partition
from stilltide.connectors.kafka.headers.reading import HeaderReading, HeadersOf
from stilltide.connectors.names import check_topic_name
from stilltide.connectors.ports.copying import Columns
from stilltide.connectors.ports.records import EndReached
from stilltide.schemas.values import Offset, TopicPartition


class KafkaColumnReader:
    """A `ColumnReader`. To be used on the event loop of its first `assign` only."""

    def __init__(self, config: KafkaConfig, client_id: str) -> None:
        self._slot = ReaderSlot(Inbox(config.reader_records_max))
        options = reader_options(config, client_id, committed=True)
        self._thread = ConsumerThread(config, options, self._slot)
        self._headers = HeaderReading(config, client_id, self._slot.inbox)

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment; no partition is paused afterwards."""
        for data in positions:
            check_topic_name(data.topic)
        generation, wanted = self._slot.inbox.next_generation(), dict(positions)
        await self._thread.submit(
            lambda it: self._thread.assignments.assign(it, self._slot, wanted, generation)
        )

    async def read(self) -> Sequence[Columns | EndReached]:
        """The next records, column by column."""
        while True:
            taken = await self._thread.take(self._slot)
            columns = self._headers.converted(taken, by_columns)
            if columns is not None:
                return columns
            await self._headers.recover()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions; records that were fetched already may still be returned."""
        self._thread.pause(self._slot, partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from their positions."""
        self._thread.resume(self._slot, partitions)

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        await self._thread.close()


def by_columns(items: Sequence[Item], headers_of: HeadersOf) -> list[Columns | EndReached]:
    """Messages and ends as a column reader returns them: in runs of one partition."""
    return [
        it if isinstance(it, EndReached) else _columns(*it, headers_of)
        for it in by_partition(items)
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
