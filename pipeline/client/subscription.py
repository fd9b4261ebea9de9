"""Reads the committed records of topics for an application, in offset order.

*Source*: docs/protocols D. Everything else is as in Kafka's consumer: the members of a group share
the partitions, `commit` stores the application's positions, delivery is at least once.

*Refuses*: to read past a record whose transaction is undecided.
"""

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, Unpack

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_name
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.batch_taker import Batches, BatchTaker
from stilltide.pipeline.client.batches import Message, MessageBatch
from stilltide.pipeline.client.bounds import require_at_least, require_positive
from stilltide.pipeline.client.dead_letters.options import dead_letters_of
from stilltide.pipeline.client.dead_letters.sender import sending_dead_letters
from stilltide.pipeline.client.decoding import Decoding, decoding_of
from stilltide.pipeline.client.patience import patience_s
from stilltide.pipeline.client.subscription_options import (
    SubscriptionKeywords,
    check_begin,
    limits_of,
)
from stilltide.pipeline.client.usage import (
    Home,
    check_connection,
    check_message,
    check_offset,
    check_partition,
    check_topics,
    checked_ends,
    chosen_partitions,
    messages_of,
    not_open,
    require,
)
from stilltide.pipeline.core.read_committed.machine import Statistics
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver, AckOptions
from stilltide.pipeline.drivers.pending_ack.client import AckLine
from stilltide.pipeline.drivers.read_committed.decided import Blocked
from stilltide.pipeline.drivers.subscription.deliveries import TURN_RECORDS
from stilltide.pipeline.drivers.subscription.options import OutOfRange, SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import (
    ConfigError,
    UsageError,
    error_text,
    system_topic,
)
from stilltide.pipeline.tracing import processed, tracing_of
from stilltide.schemas.topics import is_system_topic
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

if TYPE_CHECKING:
    from stilltide.pipeline.tracing.spans import Tracing


class Subscription:
    """Reads topics as a member of a consumer group; a context manager and an iterator.

        async with Subscription(["orders"], group="billing", bootstrap_servers="...") as orders:
            async for message in orders:
                ...
                await orders.commit()

    Iterate with one task at a time. After a rebalance no record of a lost partition is delivered;
    records that were delivered but not committed are delivered again, here or at another member.

    Args:
        topics: names and patterns such as `orders-*` (`*`, `?` and `[...]`, as in a shell), at
            least one, none of them a system topic; or one name or pattern. Topics that fit a
            pattern are looked for every `metadata_max_age_s`: a topic that has come is read from
            its start, one that was deleted is read no longer. A pattern takes no dead-letter topic
            (`...-DLQ`) unless the pattern itself ends in `-DLQ`.
        group: the consumer group's name.
        bootstrap_servers: addresses of brokers, as for any Kafka client; or give `connector`.
        connector: a ready connector, instead of `bootstrap_servers`.
        client_id: prefix of the client ids that the brokers see.
        from_start: whether a group without a committed position begins at the log start, or at
            the log end. A partition that a topic gains later is read from its start in any case.
        since_ms: begins such a group at the first record with a timestamp at or after this time
            instead, milliseconds since 1970, or at the log end if there is no such record.
        acknowledgements: whether messages are acknowledged one by one, also in transactions,
            instead of by `commit` of positions (see `acknowledge`). Needs a running worker.
        dead_letter_topic: topic for messages that were delivered `deliveries_max` times and failed;
            the default is `<topic>-<group>-DLQ`. The topic must exist.
        options: limits and time-outs by name; `SubscriptionLimits` documents each of them and its
            default: `buffer_records_max`, `undecided_records_max`, `unavailable_timeout_s`,
            `undecided_timeout_s`, `assignment_timeout_s`, `unacknowledged_records_max`,
            `redelivery_delay_s`, `redelivery_factor`, `redelivery_delay_s_max`, `deliveries_max`,
            `metadata_max_age_s`, `out_of_range`, `value_deserializer`, `key_deserializer`,
            `on_undecodable`.

    Attributes:
        tracing: traces of what is read; None: the application has none. Not for applications.

    Raises:
        SystemTopicError: a topic is a system topic of Stilltide.
        ConfigError: an argument is out of its bounds, or `on_undecodable` is "dead_letter" and the
            group has no dead letters.
        ArgumentError: an argument is of another type, has an unknown name, or contradicts another
            one.
        InvalidTextError: a topic, the group, the client id or an address is none that Kafka or its
            client can take.
    """

    tracing: "Tracing | None" = None

    def __init__(
        self,
        topics: str | Sequence[str],
        *,
        group: str,
        bootstrap_servers: str | None = None,
        connector: Connector | None = None,
        client_id: str = "stilltide-subscription",
        from_start: bool = True,
        since_ms: int | None = None,
        acknowledgements: bool = False,
        dead_letter_topic: str | None = None,
        **options: Unpack[SubscriptionKeywords],
    ) -> None:
        topics = _names(topics)
        check_name(group, "`group`")
        check_name(client_id, "`client_id`")
        require((str, type(None)), dead_letter_topic=dead_letter_topic)
        limits = self._limits = limits_of(**options)
        check_begin(since_ms, from_start=from_start)
        check_connection(bootstrap_servers, connector)
        self._connector = connector or KafkaConnector(KafkaConfig(bootstrap_servers or ""))
        self._options = SubscriptionOptions(
            topics=topics,
            group=group,
            client_id=client_id,
            from_start=from_start,
            since_ms=since_ms,
            out_of_range=OutOfRange(limits.out_of_range),
            buffer_records_max=limits.buffer_records_max,
            undecided_records_max=limits.undecided_records_max,
            unavailable_timeout_s=limits.unavailable_timeout_s,
            metadata_max_age_s=limits.metadata_max_age_s,
            left_out=() if dead_letter_topic is None else (dead_letter_topic,),
            timestamps=acknowledgements or limits.decodes,  # else batches have them without that
        )
        self._acknowledgements = acknowledgements
        self._dead_letters = dead_letters_of(
            self._options,
            limits,
            dead_letter_topic=dead_letter_topic,
            acknowledgements=acknowledgements,
        )
        self._driver: SubscriptionDriver | None = None
        self._source: SubscriptionDriver | AcknowledgingDriver | None = None
        self._decoding: Decoding | None = None
        self._home: Home | None = None
        self._turn: deque[Any] = deque()  # messages of the partition that `__anext__` reads now
        self._turn_left = 0
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if self._home is not None and self._source is not None:
            self._home.check()
            raise UsageError("the subscription is open", hint="make another one")
        self._home = Home("subscription")
        async with AsyncExitStack() as stack:
            source = driver = SubscriptionDriver(self._connector, self._options)
            stack.push_async_callback(driver.close)
            if self._acknowledgements:
                store = await stack.enter_async_context(
                    AckLine(
                        self._connector,
                        self._options.client_id,
                        timeout_s=self._options.answer_timeout_s,
                    )
                )
                ack_options = AckOptions(
                    unacknowledged_records_max=self._limits.unacknowledged_records_max,
                    redelivery=self._limits.redelivery,
                    patient=self._limits.unavailable_timeout_s == math.inf,
                )
                dead_letters = None
                if self._dead_letters is not None:
                    sender = await stack.enter_async_context(
                        sending_dead_letters(
                            self._connector,
                            self,
                            self._dead_letters,
                            client_id=self._options.client_id,
                            failed=driver.changes.fail,
                        )
                    )
                    dead_letters = sender.send
                source = AcknowledgingDriver(
                    driver,
                    store,
                    self._options.group,
                    ack_options,
                    dead_letters,
                    chance=self._connector.chance,
                )
                stack.push_async_callback(source.close)
            await driver.start()
            if isinstance(source, AcknowledgingDriver):
                source.start()
            self._driver, self._source = driver, source
            self._decoding = decoding_of(self._limits, driver, source)
            self._closing = stack.pop_all()
        self.tracing = tracing_of(self._options.client_id, group=self._options.group)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._home is not None:
            self._home.check()
        if self.tracing is not None:
            self.tracing.left()
        if self._driver is not None:
            await self._driver.joined.commits.leave()
        self._driver = self._source = self._decoding = None
        self._turn = deque()
        await self._closing.aclose()

    @processed
    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        """The visible records, in offset order for each partition; waits for more without limit.

        What `aiter` returns has ended after a time-out or an error; `anext(subscription)` goes on.
        Messages come in runs of one partition (`TURN_RECORDS`). Messages that are acknowledged
        together then go to one pending-ack store, in fewer requests and log entries.

        Raises:
            MarkerConflictError, DecodeError: a system topic holds a record that no coordinator
                writes.
            SnapshotPartError: a snapshot is not whole, and its missing part was not found.
            TopicRecreatedError: the topic was deleted, and another was created under its name.
            UnavailableError: the cluster could not be reached for `unavailable_timeout_s`.
            OffsetOutOfRangeError: the log does not hold the group's position, and `out_of_range` is
                "raise".
            FatalError: a topic was deleted, or reading it is not allowed.
            UndecodableError: a deserializer has refused the record that the error returns; the
                next iteration goes on behind it.
            SerializerError: what a deserializer asks does not answer; the next iteration asks
                again.
        """
        driver, source = self._checked()
        while self._decoding is not None:
            yield await self._decoding.next()
        while True:
            queue: deque[Any] = source.next_queue()
            if not queue:
                await driver.changed()
            for _ in range(min(len(queue), TURN_RECORDS)):
                if not queue:  # the partition was revoked during the yield
                    break
                yield queue.popleft()

    @processed
    def batches(
        self, records_max: int = 500, wait_s_max: float = 0.0
    ) -> AsyncGenerator[MessageBatch, None]:
        """The visible records in batches of one partition each; raises as iterating does.

        Cheaper than one message at a time, and cheapest by columns (`MessageBatch.values`).
        `commit` commits every record of a returned batch. `anext` of the same batches goes on after
        a time-out, or an error, as `anext` of the subscription does.

        Args:
            records_max: largest number of records in a batch, >= 1.
            wait_s_max: longest wait for so many records from the first one on, seconds, >= 0; at 0
                a batch has what is there. The wait ends when all partitions together have
                `buffer_records_max` records, since no more are fetched then.
        """
        require(int, records_max=records_max)
        require_positive(records_max=records_max)
        require_at_least(0, wait_s_max=wait_s_max)

        def begin() -> BatchTaker:  # where batches are awaited, which may be another thread
            return BatchTaker(
                *self._checked(),
                self._decoding,
                records_max=records_max,
                wait_s_max=wait_s_max,
                buffer_records_max=self._limits.buffer_records_max,
            )

        return Batches(begin)

    async def __anext__(self) -> Message:
        """The next visible record; waits, raises, and takes runs as iterating does."""
        tracing = self.tracing
        began_ns = 0 if tracing is None else tracing.left()
        if not self._turn or not self._turn_left:  # run over, or revoked
            driver, source = self._checked()
            if self._decoding is not None:
                message = await self._decoding.next()
                if tracing is not None:
                    tracing.taken(message, began_ns)
                return message
            while not self._turn or not self._turn_left:
                self._turn, self._turn_left = source.next_queue(), TURN_RECORDS
                if not self._turn:
                    await driver.changed()
        self._turn_left -= 1
        message = self._turn.popleft()
        if tracing is not None:
            tracing.taken(message, began_ns)
        return message

    @processed
    async def read_to(
        self, end_offsets: Mapping[TopicPartition, EndOffset]
    ) -> AsyncGenerator[Message, None]:
        """The visible records below these end offsets; waits until every record there is decided.

        Ends when the position of each named partition has reached its end offset; hidden records
        and control records count as passed. Records of other partitions, and records at or past the
        end offsets, are returned by later calls.

        Raises:
            UndecidedError: a record below an end offset was undecided for too long.
            NotAssignedError: a named partition was not assigned to this member in time.
            Others: as iterating raises.
        """
        driver, source = self._checked()
        decoding = self._decoding
        remaining = checked_ends(end_offsets)
        began = asyncio.get_running_loop().time()
        driver.joined.intake.focus(list(remaining))
        try:
            while remaining:
                yielded = False
                for data, end_offset in list(remaining.items()):
                    queue: deque[Any] = source.queue(data)
                    for _ in range(TURN_RECORDS):
                        if not queue or queue[0].offset >= end_offset:
                            break
                        yielded = True
                        if decoding is None:
                            yield queue.popleft()
                        else:
                            for message in await decoding.take(queue, 1):
                                yield message
                    position = source.position(data)
                    if position is not None and position >= end_offset:
                        del remaining[data]
                if remaining and not yielded:
                    await driver.changed(
                        patience_s(driver, self._limits, self._options.group, remaining, began)
                    )
        finally:
            driver.joined.intake.focus(None)

    async def commit(self) -> None:
        """Commits the positions of the records returned so far, not of buffered records.

        With `acknowledgements`: commits the acknowledgements now, instead of within a second.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster could not be reached for `unavailable_timeout_s`.
        """
        await self._checked()[1].commit()

    def acknowledge(self, message: Record | MessageBatch) -> None:
        """Marks a message as done; the group's cursor is committed within a second, and on leaving.

        A message that is not acknowledged is delivered again to the next member with its partition.

        Args:
            message: a message that was delivered to this member; or a batch of them.

        Raises:
            AcknowledgementError: the message was not delivered to this member, its partition was
                lost, or it is acknowledged already, outside or inside of a transaction. Nothing
                was changed; of a batch, the messages before it are acknowledged.
        """
        for delivered in messages_of(message):
            self.acknowledging.acknowledge(delivered)

    def acknowledge_cumulative(self, message: Record | MessageBatch) -> None:
        """Marks a message or batch, and all before it in its partition, as done; see `acknowledge`.

        The call is refused as a whole when one of these messages is acknowledged in a transaction,
        or was never returned: a message may be held back for a transaction of another member while
        later messages are returned. `acknowledge_cumulative` does not prove who processed a
        message: after a rebalance see `rebalance_count`.
        """
        self.acknowledging.acknowledge_cumulative(messages_of(message)[-1])

    def negative_acknowledge(
        self, message: Record, error: str | BaseException = "negatively acknowledged"
    ) -> None:
        """Says that a message could not be processed; raises as `acknowledge`.

        The message comes again after a back-off, with `message.deliveries` one higher; after
        `deliveries_max` deliveries the message moves to its dead-letter topic.

        Args:
            message: a message that was delivered to this member.
            error: the reason, for the headers of a dead letter; the first 1024 bytes are kept.
        """
        check_message(message)
        require((str, BaseException), error=error)
        self.acknowledging.negative_acknowledge(message, error_text(error))

    @property
    def acknowledging(self) -> AcknowledgingDriver:
        """The driver through which transactions acknowledge; not for applications.

        Raises:
            ConfigError: the subscription was made without `acknowledgements`.
        """
        _, source = self._checked()
        if not isinstance(source, AcknowledgingDriver):
            raise ConfigError(
                "the subscription does not take acknowledgements",
                hint="make the subscription with `acknowledgements=True`",
            )
        return source

    async def seek(self, data: TopicPartition, offset: int) -> None:
        """Goes on reading a partition at an offset, for this member and, once committed, its group.

        Without acknowledgements: `commit` commits the new position, as after reading.

        With acknowledgements: the group's cursor becomes the offset, within a second. Messages
        below are given up, also those that are with the application or wait for redelivery.
        Acknowledged messages stay acknowledged, so an offset below the cursor is refused. Messages
        from the offset on are delivered again unless they are acknowledged; those in an open
        transaction come again only if it aborts. A message that was delivered before cannot be
        acknowledged until it is delivered again, and counts from 1. A transaction whose
        acknowledgement was not stored yet aborts at its commit, as after a rebalance.

        Args:
            data: a partition that is assigned to this member: `position` of it is not None.
            offset: an offset from the log start to the log end, both included.

        Raises:
            NotAssignedError: the partition is not assigned to this member.
            OffsetOutOfRangeError: the offset is not in the log; nothing was changed.
            AlreadyAcknowledgedError: the offset is below the group's cursor; nothing was changed.
            UnavailableError: the cluster could not be reached for `unavailable_timeout_s`.
        """
        _, source = self._checked()
        check_partition(data)
        check_offset(offset)
        await source.seek(data, Offset(offset))

    async def seek_to_time(
        self, timestamp_ms: int, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Offset]:
        """Goes on at the first record with a timestamp at or after a time; returns the offsets.

        A partition without such a record goes on at its log end. Else as `seek`, for one partition
        after the other; an error leaves the partitions before it where they were moved to.

        Args:
            timestamp_ms: milliseconds since 1970.
            partitions: partitions that are assigned to this member; None: all of them.
        """
        driver, source = self._checked()
        require(int, timestamp_ms=timestamp_ms)
        chosen = sorted(self.statistics()) if partitions is None else chosen_partitions(partitions)
        offsets = await driver.joined.seeking.offsets_since(chosen, timestamp_ms)
        for data, offset in offsets.items():
            await source.seek(data, offset)
        return offsets

    def position(self, data: TopicPartition) -> EndOffset | None:
        """Every record below this offset was returned, or never will be; None: not assigned."""
        source = self._opened()[1]
        check_partition(data)
        return source.position(data)

    @property
    def rebalance_count(self) -> int:
        """How often partitions were assigned or revoked.

        Messages returned before the last rebalance may have been delivered to another member since,
        even if their partition was assigned here again. An application that processes messages one
        by one and acknowledges cumulatively drops these messages; they are returned again.
        """
        return self._opened()[0].rebalance_count

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """Counts of each assigned partition since its assignment.

        `delivered` and `position` count the records that iterating has returned.
        """
        driver, source = self._opened()
        counts = driver.statistics()
        if not isinstance(source, AcknowledgingDriver):
            return counts
        return {data: source.counted(data, one) for data, one in counts.items()}

    @property
    def blocked(self) -> list[Blocked]:
        """The undecided record at which each blocked partition waits, and since how long."""
        return list(self._opened()[0].blocked().values())

    def _checked(self) -> tuple[SubscriptionDriver, SubscriptionDriver | AcknowledgingDriver]:
        """Driver and source of a call that changes something or waits; checks where it is made."""
        if self._home is None:
            raise not_open("subscription", _OPEN)
        self._home.check()
        return self._opened()

    def _opened(self) -> tuple[SubscriptionDriver, SubscriptionDriver | AcknowledgingDriver]:
        if self._driver is None or self._source is None:
            raise not_open("subscription", _OPEN)
        return self._driver, self._source


_OPEN = "use it as a context manager: `async with Subscription(...) as messages:`"


def _names(topics: str | Sequence[str]) -> tuple[str, ...]:
    """The topics and patterns; raises as `Subscription`."""
    names = check_topics(topics)
    for name in filter(is_system_topic, names):
        raise system_topic(name, hint="read it with a plain Kafka consumer")
    return names
