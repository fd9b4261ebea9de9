"""Consumers that FastStream's two Kafka brokers read from: subscriptions in their clients' shape.

*Source*: docs/protocols D and G: a subscription returns committed records alone, and its messages
are acknowledged in transactions, which the offsets of FastStream's own consumers cannot join.

*Invariants*: FastStream's calls of `commit` and `seek` change nothing; transactions acknowledge.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.errors import ArgumentError
from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.replication.origins import ORIGIN

if TYPE_CHECKING:
    from stilltide.pipeline.tracing.spans import Tracing

BATCH_RECORDS_MAX = 500
"""Most records of a batch where the subscriber does not say how many."""

REJECTED_MAX = 1_000
"""Rejected messages that are remembered until they come again; an older one is handled again."""

OpenSubscription = Callable[[Sequence[str], str, str], Subscription]
"""Makes a subscription of topics, a group, and the value of `auto_offset_reset`."""


class Source(NamedTuple):
    """Where a message of a handler came from."""

    consumer: "TransactionalConsumer"
    message: Message


class TransactionalConsumer:
    """What both clients have in common: takes messages of a subscription.

    Args:
        open_subscription: makes the subscription.
        failed: told of an error that ends the subscription.

    Attributes:
        tracing: traces of what handlers process; None: the application has none.
    """

    def __init__(
        self, open_subscription: OpenSubscription, failed: Callable[[], None], **options: Any
    ) -> None:
        group = options.get("group_id")
        if not group:
            raise ArgumentError(
                "a subscriber of the broker has no group",
                hint='give each subscriber a group: `@broker.subscriber("orders", group_id="...")`',
            )
        self._open = open_subscription
        self._failed = failed
        self._group: str = group
        self._reset: str = options.get("auto_offset_reset", "latest")
        self._subscription: Subscription | None = None
        self.tracing: Tracing | None = None
        # By place. The content tells them from those of a topic that was made again.
        self._rejected: dict[tuple[str, int, int], tuple[bytes | None, bytes | None]] = {}
        self._ended = False

    @property
    def subscription(self) -> Subscription:
        """The open subscription."""
        assert self._subscription is not None, "FastStream starts a consumer before it reads"
        return self._subscription

    def reject(self, message: Message) -> None:
        """Has a message, whose transaction is aborted, acknowledged when it comes again."""
        if len(self._rejected) >= REJECTED_MAX:  # their partitions went to other members
            del self._rejected[next(iter(self._rejected))]
        self._rejected[_place(message)] = message.key, message.value

    async def start_reading(self, topics: Sequence[str]) -> None:
        """Joins the group."""
        self._subscription = await self._open(topics, self._group, self._reset).__aenter__()
        # A handler, and not the reading task, processes a message.
        self.tracing, self._subscription.tracing = self._subscription.tracing, None

    async def stop(self) -> None:
        """Leaves the group; what is not acknowledged is delivered again."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.__aexit__()

    async def commit(self, *_: object, **__: object) -> None:
        """Nothing: the transaction of the handler has acknowledged the message."""

    async def take(self, timeout_s: float | None) -> Message | None:
        """The next message; None: there is none in time."""
        scope = asyncio.timeout(timeout_s)
        try:
            async with scope:
                if self._ended:  # FastStream reads on at once, and has logged the error
                    await asyncio.Event().wait()
                while True:
                    message = await anext(self.subscription)
                    rejected = self._rejected.pop(_place(message), None)
                    if rejected != (message.key, message.value):
                        return message
                    self.subscription.acknowledge(message)
        except TimeoutError:
            if scope.expired():
                return None
            raise
        except Exception:
            self._ended = True
            self._failed()
            raise

    async def take_many(self, timeout_s: float | None, count_max: int | None) -> list[Message]:
        """The next messages, as many as are there when the first one is."""
        messages: list[Message] = []
        message = await self.take(timeout_s)
        while message is not None:
            messages.append(message)
            if len(messages) == (count_max or BATCH_RECORDS_MAX):
                break
            message = await self.take(0)
        return messages


class ConfluentConsumer(TransactionalConsumer):
    """In the shape of `faststream.confluent.helpers.client.AsyncConfluentConsumer`."""

    def __init__(
        self,
        open_subscription: OpenSubscription,
        failed: Callable[[], None],
        *topics: Any,
        partitions: Sequence[object] = (),
        **options: Any,
    ) -> None:
        super().__init__(open_subscription, failed, **options)
        if partitions:
            raise _no_partitions()
        self._topics = [topic.name for topic in topics]

    async def start(self) -> None:
        """As `TransactionalConsumer.start_reading`."""
        await self.start_reading(self._topics)

    async def getone(
        self,
        timeout: float = 0.1,  # noqa: ASYNC109 - FastStream's name
    ) -> "ConfluentMessage | None":
        """The next message, if one comes in time."""
        message = await self.take(timeout)
        return None if message is None else ConfluentMessage(Source(self, message))

    async def getmany(
        self,
        timeout: float = 0.1,  # noqa: ASYNC109 - FastStream's name
        max_records: int | None = 10,
    ) -> "tuple[ConfluentMessage, ...]":
        """The next messages, if one comes in time."""
        messages = await self.take_many(timeout, max_records)
        return tuple(ConfluentMessage(Source(self, it)) for it in messages)

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """Nothing, as `commit`."""


class ConfluentMessage:
    """A message with the methods of `confluent_kafka.Message`, which is made by tests alone."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def topic(self) -> str:
        """The topic."""
        return self.source.message.topic

    def partition(self) -> int:
        """The partition."""
        return self.source.message.partition

    def offset(self) -> int:
        """The offset."""
        return self.source.message.offset

    def key(self) -> bytes | None:
        """The key."""
        return self.source.message.key

    def value(self) -> bytes | None:
        """The value."""
        return self.source.message.value

    def headers(self) -> Headers:
        """The headers of the application."""
        return _headers(self.source.message)

    def timestamp(self) -> tuple[int, int]:
        """Not available (0): a subscription does not read timestamps."""
        return 0, 0

    def error(self) -> None:
        """None: an error is raised instead."""


class AioKafkaConsumer(TransactionalConsumer):
    """In the shape of `aiokafka.AIOKafkaConsumer`, as far as FastStream uses it."""

    def __init__(
        self, open_subscription: OpenSubscription, failed: Callable[[], None], **options: Any
    ) -> None:
        super().__init__(open_subscription, failed, **options)
        self._topics: list[str] = []

    def subscribe(
        self,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        listener: object = None,  # noqa: ARG002 - FastStream's
    ) -> None:
        """Says what to read."""
        if pattern is not None:
            raise ArgumentError(
                f"a subscriber of the broker reads the pattern {pattern}",
                hint="name its topics; a pattern with `*` is the name of a topic here, too",
            )
        self._topics = list(topics)

    def assign(self, **_: object) -> None:
        """Refused: a subscriber without a group."""
        raise _no_partitions()

    async def start(self) -> None:
        """As `TransactionalConsumer.start_reading`."""
        await self.start_reading(self._topics)

    async def getone(self) -> Any:
        """The next message."""
        message = await self.take(None)
        assert message is not None, "there is no time-out"
        return self._record(message)

    async def getmany(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> Mapping[object, Sequence[Any]]:
        """The next messages, if one comes in time; FastStream does not look at the keys."""
        messages = await self.take_many(timeout_ms / 1000, max_records)
        return {None: [self._record(it) for it in messages]} if messages else {}

    def seek(self, partition: object, offset: int) -> None:
        """Nothing, as `commit`."""

    def _record(self, message: Message) -> Any:
        from aiokafka import ConsumerRecord  # noqa: PLC0415 - the application has imported it

        record = ConsumerRecord(
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            timestamp=0,
            timestamp_type=0,
            key=message.key,
            value=message.value,
            checksum=None,
            serialized_key_size=len(message.key or b""),
            serialized_value_size=len(message.value or b""),
            headers=[(name, value or b"") for name, value in _headers(message)],
        )
        record.source = Source(self, message)  # pyright: ignore[reportAttributeAccessIssue]
        return record


def sources_of(raw: Any) -> tuple[Source, ...]:
    """Where the messages of a handler came from, one or a batch; empty: from another consumer."""
    records = raw if isinstance(raw, tuple) else (raw,)
    sources = [getattr(record, "source", None) for record in records]
    return tuple(source for source in sources if isinstance(source, Source))


def _place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset


def _headers(message: Message) -> Headers:
    """Without Stilltide's own, which are no text: FastStream takes every header for text."""
    return [it for it in message.headers or () if it[0] not in (TXN, ORIGIN)]


def _no_partitions() -> ArgumentError:
    return ArgumentError(
        "a subscriber of the broker reads partitions without a group",
        hint="give the subscriber topics and a group",
    )
