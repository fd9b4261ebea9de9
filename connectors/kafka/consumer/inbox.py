"""Messages that a consumer's thread has read and the loop has not taken yet.

*Source*: connectors.ports, `LogReader.read`.

*Invariants*: batches leave in the order of arrival; a failure is raised only after the batches that
came before it; a `FatalError` is raised by every `take` until `clear`. Batches of an older
generation (assignment) are dropped.

To be used on the loop only, except for `count_in`, `has_space` and `wait_for_space`, which are
called on the consumer's thread.

Converts messages of the client to what readers return.

*Source*: connectors.ports, `LogReader.read`.

The headers of one reader's messages, whatever bytes their names hold.

*Source*: docs/protocols D9; docs/internals/kafka-clients.md, Consumers.

*Invariants*: no record is skipped, and none is returned twice: of a read that meets a name which
the client cannot decode, the messages in front of it are returned, and the others go back to the
inbox, before the reader waits for anything. The headers that the client has dropped are fetched
again, and nothing asks that message for them: the process would crash. Those of one record are
fetched for `CAREFUL_RECORDS` records at most: so many are read as bytes after such a name, which
costs more than the client's own way and drops nothing. Where the bytes cannot be read, each read at
the record raises an error, until the reader is assigned elsewhere.

To be used on the reader's event loop only.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.errors import (
    FatalError,
    OffsetOutOfRangeError,
    RetriableError,
    UnreadableRecordError,
)
from stilltide.connectors.kafka.config import KafkaConfig, reader_options
from stilltide.connectors.kafka.errors import translate
from stilltide.connectors.kafka.logs import ClientLog
from stilltide.connectors.ports.readers import (
    EndReached,
    FetchedRecord,
    Fetching,
    Record,
    Run,
    TimedRecord,
    WrappedRecord,
    record_of,
    timestamps_ms,
)
from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of values that wait for a reader's caller, exceeded by one batch at most."""


Item = Message | EndReached
"""A record as the client returned it, or the event that the reader has met an end."""


class HeaderBytes(list[Headers | None]):
    """Headers that were read as bytes, of messages that nothing may ask for their headers."""


HeadersOf = Callable[[Sequence[Message]], Sequence[Headers | None]]


class PolledBatch(NamedTuple):
    """The items that one poll of a consumer returned for one reader."""

    generation: int
    items: Sequence[Item]
    value_bytes: int


class Inbox:
    """The queue between a consumer's thread and a reader on the loop.

    Args:
        records_max: records that wait at most, exceeded by one batch.
        bytes_max: bytes of their values, also exceeded by one batch; at most `BYTES_MAX`.
    """

    def __init__(self, records_max: int, bytes_max: int = BYTES_MAX) -> None:
        self.generation = 0
        self._records_max = records_max
        self._bytes_max = min(bytes_max, BYTES_MAX)
        self._batches: deque[PolledBatch] = deque()
        self._away: RetriableError | None = None
        self._failure: FatalError | None = None
        self._closed: FatalError | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Each counter is written by one thread only, so that neither needs a lock.
        self._sent_records = self._sent_bytes = 0
        self._taken_records = self._taken_bytes = 0
        self._space = threading.Event()

    async def take(self) -> Sequence[Item]:
        """The next batch; see `LogReader.read`."""
        assert self._waiter is None, "one read at a time"
        while True:
            if self._closed is not None:
                raise self._closed
            if self._batches:
                batch = self._batches.popleft()
                self._count_out(batch)
                return batch.items
            if self._failure is not None:
                raise self._failure
            if self._away is not None:
                away, self._away = self._away, None
                raise away
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def arrive(self, batch: PolledBatch) -> None:
        """Queues a batch; drops a batch of an older generation."""
        if batch.generation != self.generation:
            self._count_out(batch)
            return
        self._away = None
        self._batches.append(batch)
        self._wake()

    def put_back(self, items: Sequence[Item]) -> None:
        """Has the next `take` return items that have just been taken or fetched."""
        size_bytes = sum(len(it) for it in items if not isinstance(it, EndReached))
        batch = PolledBatch(self.generation, items, size_bytes)
        self._taken_records -= len(items)
        self._taken_bytes -= size_bytes
        self._batches.appendleft(batch)

    def away(self, error: RetriableError) -> None:
        """Has `take` raise that the broker is away: once, and only if no records come first."""
        self._away = error
        self._wake()

    def fail(self, generation: int, error: FatalError) -> None:
        """Has `take` raise that reading cannot go on; keeps the first failure of a generation."""
        if generation == self.generation and self._failure is None:
            self._failure = error
            self._wake()

    def next_generation(self) -> int:
        """Drops items that were not taken, or are on their way; returns the new generation."""
        self.generation += 1
        self.clear()
        return self.generation

    def clear(self) -> None:
        """Drops items that were not taken; items that arrive later are taken as before."""
        for batch in self._batches:
            self._count_out(batch)
        self._batches.clear()
        self._away = self._failure = None

    def close(self, error: FatalError) -> None:
        """Has the present and every later `take` raise `error`."""
        self.clear()
        self._closed = error
        self._wake()

    @property
    def is_read_up(self) -> bool:
        """Whether no item is queued or on its way, and no error is to be raised."""
        failure = self._closed or self._failure or self._away
        return failure is None and self._sent_records == self._taken_records

    def count_in(self, batch: PolledBatch) -> None:
        """Counts a batch that is on its way; called on the consumer's thread."""
        self._sent_records += len(batch.items)
        self._sent_bytes += batch.value_bytes

    def has_space(self) -> bool:
        """Whether the limits admit another batch; called on the consumer's thread."""
        return (
            self._sent_records - self._taken_records < self._records_max
            and self._sent_bytes - self._taken_bytes < self._bytes_max
        )

    def wait_for_space(self, timeout_s: float) -> bool:
        """Waits on the consumer's thread for space; False if there is none after the time-out."""
        if self.has_space():
            return True
        self._space.clear()
        if self.has_space():
            return True
        self._space.wait(timeout_s)
        return self.has_space()

    def _count_out(self, batch: PolledBatch) -> None:
        self._taken_records += len(batch.items)
        self._taken_bytes += batch.value_bytes
        self._space.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name begins so

_FIELDS: tuple[Callable[[Message], Any], ...] = (
    Message.topic,
    Message.partition,
    Message.offset,
    Message.key,
    Message.value,
)
_TOPIC = cast("Callable[[Message], str]", Message.topic)
_PARTITION = cast("Callable[[Message], int]", Message.partition)
_MESSAGES_ONLY = {Message}


def sort_out(messages: list[Message]) -> tuple[list[Item], list[Message]]:
    """Separates records and ends, in order, from the messages that report an error."""
    if not any(map(Message.error, messages)):
        return [*messages], []
    items: list[Item] = []
    failed: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            items.append(message)
        elif error.code() == _END:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            items.append(EndReached(topic, partition, EndOffset(offset)))
        else:
            failed.append(message)
    return items, failed


def place_of_message(message: Message) -> TopicPartition | None:
    """The partition of a message or of its error; None if the message names none."""
    topic, partition = message.topic(), message.partition()
    return None if topic is None or partition is None else TopicPartition(topic, partition)


def converted(items: Sequence[Item], headers_of: HeadersOf) -> Sequence[Record | EndReached]:
    """Items as readers return them.

    Converts column by column, which costs a third of a Python loop over records. Runs on the
    caller's thread, because objects that another processor has just made are slow to access.
    """
    if set(map(type, items)) == _MESSAGES_ONLY:
        return _records_of(cast("Sequence[Message]", items), headers_of)
    messages = [it for it in items if not isinstance(it, EndReached)]
    records = iter(_records_of(messages, headers_of))
    return [it if isinstance(it, EndReached) else next(records) for it in items]


def timed(items: Sequence[Item], headers_of: HeadersOf) -> Sequence[Record | EndReached]:
    """Items as readers with `timestamps` return them."""
    return [
        made
        if isinstance(made, EndReached) or isinstance(item, EndReached)
        else TimedRecord.at(made, item.timestamp()[1])
        for item, made in zip(items, converted(items, headers_of), strict=True)
    ]


def by_partition(
    items: Sequence[Item],
) -> Iterator[EndReached | tuple[TopicPartition, Sequence[Message]]]:
    """Splits items into ends, and runs of messages of one partition between the ends."""
    if set(map(type, items)) == _MESSAGES_ONLY:
        yield from _by_partition(cast("Sequence[Message]", items))
        return
    for is_end, group in groupby(items, lambda it: isinstance(it, EndReached)):
        if is_end:
            yield from cast("Iterator[EndReached]", group)
        else:
            yield from _by_partition(cast("list[Message]", [*group]))


def run_of(data: TopicPartition, messages: Sequence[Message], headers_of: HeadersOf) -> Run:
    """The `Run` that a group's reader returns for messages of one partition."""
    offsets = cast("list[Offset]", [*map(Message.offset, messages)])
    headers = headers_of(messages)
    fetched: Sequence[FetchedRecord] = messages
    if isinstance(headers, HeaderBytes):  # nothing may ask the messages for their headers again
        stamps = timestamps_ms(messages)
        timed = map(TimedRecord.at, _with_headers(messages, headers), stamps)
        fetched = [*map(WrappedRecord, timed)]
    return Run(data, offsets, headers, fetched)


def _by_partition(
    messages: Sequence[Message],
) -> Iterator[tuple[TopicPartition, Sequence[Message]]]:
    topics, partitions = [*map(_TOPIC, messages)], [*map(_PARTITION, messages)]
    first, count = TopicPartition(topics[0], partitions[0]), len(messages)
    # Mostly all messages are of one partition, and counting is cheaper than grouping.
    if topics.count(first.topic) == count and partitions.count(first.partition) == count:
        yield first, messages
        return
    for place, group in groupby(messages, lambda it: (_TOPIC(it), _PARTITION(it))):
        yield TopicPartition(*place), [*group]


def _records_of(messages: Sequence[Message], headers_of: HeadersOf) -> list[Record]:
    return _with_headers(messages, headers_of(messages))


def _with_headers(messages: Sequence[Message], headers: Sequence[Headers | None]) -> list[Record]:
    columns = [map(field, messages) for field in _FIELDS]
    return list(map(record_of, zip(*columns, headers, strict=True)))


T = TypeVar("T")

CAREFUL_RECORDS = 100_000
"""Records whose headers are read as bytes after a name that the client cannot decode."""

_GONE: Headers = ((TXN, None),)
"""Headers of a record that has left the log before they could be read: no reader may show it (D3),
since its transaction is not known."""


Conversion = Callable[[Sequence[Item], HeadersOf], T]


class _UndecodedError(Exception):
    """A message whose headers the client has dropped."""

    def __init__(self, message: Message) -> None:
        super().__init__()
        self.message = message


class HeaderReading:
    """Converts what one reader has read.

    Args:
        config: the cluster.
        client_id: name of the reader.
        inbox: inbox of the reader.
    """

    def __init__(self, config: KafkaConfig, client_id: str, inbox: Inbox) -> None:
        self._config = config
        self._client_id = client_id
        self._inbox = inbox
        self._careful_records = 0  # that are left to be read as bytes
        self._dropped: Message | None = None  # the one whose headers the client has dropped
        self._fetched: Headers | None = None  # its headers; None: they were not fetched yet

    def converted(self, items: Sequence[Item], convert: Conversion[T]) -> T | None:
        """The items as the reader returns them, or the first of them; None: none of them yet.

        All others went back to the inbox. After None, `recover` has to be called before they are
        taken again.
        """
        if not items:  # the message whose headers were dropped may wait in the inbox
            return convert(items, self._headers_of)
        if self._dropped is not None and self._fetched is None:
            if items[0] is self._dropped:
                self._inbox.put_back(items)
                return None
            self._dropped = None  # the reader was assigned elsewhere
        try:
            made = convert(items, self._headers_of)
        except _UndecodedError as undecoded:
            at = next(n for n, it in enumerate(items) if it is undecoded.message)
            made = convert(items[:at], self._headers_of) if at else None
            self._inbox.put_back(items[at:])
            self._dropped, self._fetched = undecoded.message, None
            return made
        self._dropped = self._fetched = None  # among the items, or not wanted
        return made

    async def recover(self) -> None:
        """Fetches again the headers that the client has dropped (D9).

        Raises:
            RetriableError: the broker is away; the next read tries again.
            UnreadableRecordError: this system cannot read such a header.
            FatalError: the record cannot be fetched, for example for want of a right.
        """
        message = self._dropped
        if message is None or self._fetched is not None:
            return
        fetched = await asyncio.to_thread(_fetched, self._config, self._client_id, message)
        if message is self._dropped:
            self._fetched, self._careful_records = fetched, CAREFUL_RECORDS

    def _headers_of(self, messages: Sequence[Message]) -> Sequence[Headers | None]:
        if self._careful_records > 0:
            self._careful_records -= len(messages)
            return HeaderBytes(self._careful_headers_of(messages))
        made: list[Headers | None] = []
        try:
            made += cast("map[Headers | None]", map(Message.headers, messages))
        except SystemError:
            raise _UndecodedError(messages[len(made)]) from None
        return made

    def _careful_headers_of(self, messages: Sequence[Message]) -> Iterator[Headers | None]:
        from stilltide.connectors.kafka.consumer import header_library  # noqa: PLC0415 - seldom needed

        for message in messages:
            yield self._fetched if message is self._dropped else header_library.headers_of(message)


def _fetched(config: KafkaConfig, client_id: str, message: Message) -> Headers:
    """The headers of a message, read again from its place; waits for the broker."""
    from stilltide.connectors.kafka.consumer import header_library  # noqa: PLC0415 - seldom needed

    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    name = f"{client_id}-headers"
    action = f"cannot read the headers of {topic}/{partition}@{offset}"
    if not header_library.is_readable():
        raise UnreadableRecordError(
            f"{action}: a name among them is not UTF-8",
            detail="on this system the client library does not show the bytes of the name",
            hint="read on from the next offset, or read on Linux or macOS with CPython",
        ).at(topic, partition, offset)
    options = reader_options(config, name, committed=False, fetching=Fetching.SCANNING)
    deadline_s = time.monotonic() + config.request_timeout_s
    consumer = Consumer(dict(options), logger=ClientLog(name, config.lines))
    try:
        consumer.assign([ClientPartition(topic, partition, offset)])
        while (left_s := deadline_s - time.monotonic()) > 0:
            again = consumer.poll(left_s)
            if again is None:
                break
            if (error := again.error()) is None:
                return (
                    (header_library.headers_of(again) or ()) if again.offset() == offset else _GONE
                )
            if error.code() == _END:
                return _GONE
            failure = translate(error, config.caller, action)
            if isinstance(failure, OffsetOutOfRangeError):
                return _GONE
            if isinstance(failure, FatalError):
                raise failure.at(topic, partition, offset)
    except KafkaException as error:
        raise translate(error, config.caller, action).at(topic, partition, offset) from error
    finally:
        consumer.close()
    raise RetriableError(action, hint="check that the broker runs").at(topic, partition, offset)
