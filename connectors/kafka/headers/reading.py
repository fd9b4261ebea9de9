"""The headers of one reader's messages, whatever bytes their names hold.

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
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from stilltide.connectors.errors import (
    FatalError,
    OffsetOutOfRangeError,
    RetriableError,
    UnreadableRecordError,
)
from stilltide.connectors.kafka.config import KafkaConfig, reader_options
from stilltide.connectors.kafka.consumer.inbox import Inbox, Item
from stilltide.connectors.kafka.errors import translate
from stilltide.connectors.kafka.logs import ClientLog
from stilltide.connectors.ports.fetching import Fetching
from stilltide.schemas.headers import TXN, Headers

T = TypeVar("T")

CAREFUL_RECORDS = 100_000
"""Records whose headers are read as bytes after a name that the client cannot decode."""

_GONE: Headers = ((TXN, None),)
"""Headers of a record that has left the log before they could be read: no reader may show it (D3),
since its transaction is not known."""

_END = KafkaError._PARTITION_EOF  # noqa: SLF001 - the client's public name begins so

HeadersOf = Callable[[Sequence[Message]], Sequence[Headers | None]]
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
        """Fetches again the headers that the client has dropped.

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
            return [*self._careful_headers_of(messages)]
        made: list[Headers | None] = []
        try:
            made += cast("map[Headers | None]", map(Message.headers, messages))
        except SystemError:
            raise _UndecodedError(messages[len(made)]) from None
        return made

    def _careful_headers_of(self, messages: Sequence[Message]) -> Iterator[Headers | None]:
        from stilltide.connectors.kafka.headers import library  # noqa: PLC0415 - seldom needed

        for message in messages:
            yield self._fetched if message is self._dropped else library.headers_of(message)


def _fetched(config: KafkaConfig, client_id: str, message: Message) -> Headers:
    """The headers of a message, read again from its place; waits for the broker."""
    from stilltide.connectors.kafka.headers import library  # noqa: PLC0415 - seldom needed

    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    name = f"{client_id}-headers"
    action = f"cannot read the headers of {topic}/{partition}@{offset}"
    if not library.is_readable():
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
                return (library.headers_of(again) or ()) if again.offset() == offset else _GONE
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
