"""Reads the committed records of topics for an application, in offset order.

*Source*: protocols.md D; where D says nothing, the habits of the Kafka consumer: a group shares the
partitions, `commit` says how far the application has come, delivery is at least once.

*Refuses*: to pass a record whose transaction is undecided.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self, Unpack

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.client.bounds import require_positive
from stilltide.pipeline.client.subscription_options import SubscriptionKeywords, limits_of
from stilltide.pipeline.core.read_committed.effects import Statistics
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver, AckOptions
from stilltide.pipeline.drivers.pending_ack.client import connect_ack_store
from stilltide.pipeline.drivers.read_committed.snapshot_asker import Blocked
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import TURN_RECORDS, SubscriptionDriver
from stilltide.pipeline.errors import ConfigError, NotAssignedError, UndecidedError, system_topic
from stilltide.schemas.topics import is_system_topic
from stilltide.schemas.values import EndOffset, TopicPartition

Message = Record
"""A visible record: topic, partition, offset, key, value, headers as written, and its `txn`."""


class Subscription:
    """Reads topics as a member of a consumer group; a context manager and an iterator.

        async with Subscription(["orders"], group="billing", bootstrap_servers="...") as orders:
            async for message in orders:
                ...
                await orders.commit()

    Iterate with one task at a time. After a rebalance nothing of a lost partition is delivered;
    records that were delivered but not committed come again, here or at another member.

    Args:
        topics: at least one, none of them a system topic.
        group: consumer group.
        bootstrap_servers: brokers, as for any Kafka client; or give a ready `connector`.
        connector: instead of `bootstrap_servers`.
        client_id: prefix of the clients' names at the brokers.
        from_start: where a group without committed position begins: the log start, or its end.
        acknowledgements: messages are acknowledged one by one, in transactions too, rather than by
            `commit` of positions: see `acknowledge`. Needs a running worker.
        options: limits and time-outs by name; `SubscriptionLimits` documents each, with its
            default: `buffer_records_max`, `undecided_records_max`, `unavailable_timeout_s`,
            `undecided_timeout_s`, `assignment_timeout_s`, `unacknowledged_records_max`,
            `redelivery_delay_s`.

    Raises:
        SystemTopicError: a topic is one of Stilltide's own.
        ConfigError: an argument is out of its bounds.
        TypeError: an argument has an unknown name, or does not go with the others.
    """

    def __init__(
        self,
        topics: Sequence[str],
        *,
        group: str,
        bootstrap_servers: str | None = None,
        connector: Connector | None = None,
        client_id: str = "stilltide-subscription",
        from_start: bool = True,
        acknowledgements: bool = False,
        **options: Unpack[SubscriptionKeywords],
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise TypeError("topics is a list of at least one topic")
        for name in filter(is_system_topic, topics):
            raise system_topic(name, hint="read it with a plain Kafka consumer")
        limits = self._limits = limits_of(**options)
        if (bootstrap_servers is None) == (connector is None):
            raise TypeError("give either bootstrap_servers or connector")
        self._connector = connector or KafkaConnector(
            KafkaConfig(bootstrap_servers=bootstrap_servers or "")
        )
        self._options = SubscriptionOptions(
            topics=tuple(topics),
            group=group,
            client_id=client_id,
            from_start=from_start,
            buffer_records_max=limits.buffer_records_max,
            undecided_records_max=limits.undecided_records_max,
            unavailable_timeout_s=limits.unavailable_timeout_s,
        )
        self._acknowledgements = acknowledgements
        self._driver: SubscriptionDriver | None = None
        self._source: SubscriptionDriver | AcknowledgingDriver | None = None
        self._turn: deque[Message] = deque()  # of the partition that `anext` takes from
        self._turn_left = 0
        self._closing = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            source = driver = SubscriptionDriver(self._connector, self._options)
            stack.push_async_callback(driver.close)
            if self._acknowledgements:
                store = await stack.enter_async_context(
                    connect_ack_store(
                        self._connector,
                        self._options.client_id,
                        timeout_s=self._options.unavailable_timeout_s,
                    )
                )
                ack_options = AckOptions(
                    unacknowledged_records_max=self._limits.unacknowledged_records_max,
                    redelivery_delay_s=self._limits.redelivery_delay_s,
                )
                source = AcknowledgingDriver(driver, store, self._options.group, ack_options)
                stack.push_async_callback(source.close)
            await driver.start()
            if isinstance(source, AcknowledgingDriver):
                source.start()
            self._driver, self._source = driver, source
            self._closing = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver = self._source = None
        self._turn = deque()
        await self._closing.aclose()

    async def __aiter__(self) -> AsyncGenerator[Message, None]:
        """The visible records, in offset order for each partition; waits for more without limit.

        Raises:
            MarkerConflictError, DecodeError: a system topic holds what no coordinator writes.
            SnapshotPartError: a snapshot is not whole, and its missing part is nowhere.
            TopicRecreatedError: the topic was deleted, and another was created under its name.
            UnavailableError: the cluster stayed away.
            FatalError: a topic was deleted, or reading it is not allowed.
        """
        driver, source = self._open_driver(), self._open_source()
        while True:
            queue = source.next_queue()
            if not queue:
                await driver.changed()
            for _ in range(min(len(queue), TURN_RECORDS)):
                if not queue:  # revoked while the application had the turn
                    break
                yield queue.popleft()

    async def batches(self, records_max: int = 500) -> AsyncGenerator[Sequence[Message], None]:
        """The visible records in batches of one partition each, otherwise as iterating.

        Costs less than one message at a time. `commit` counts a batch as returned as a whole.

        Args:
            records_max: of one batch, >= 1.
        """
        require_positive(records_max=records_max)
        driver, source = self._open_driver(), self._open_source()
        while True:
            queue = source.next_queue()
            if not queue:
                await driver.changed()
            elif len(queue) > records_max:
                yield [queue.popleft() for _ in range(records_max)]
            else:
                batch = list(queue)
                queue.clear()
                yield batch

    async def __anext__(self) -> Message:
        """The next visible record; waits, raises and takes turns as iterating does."""
        driver, source = self._open_driver(), self._open_source()
        while not self._turn or not self._turn_left:  # over, or revoked
            self._turn, self._turn_left = source.next_queue(), TURN_RECORDS
            if not self._turn:
                await driver.changed()
        self._turn_left -= 1
        return self._turn.popleft()

    async def read_to(
        self, end_offsets: Mapping[TopicPartition, EndOffset]
    ) -> AsyncGenerator[Message, None]:
        """The visible records below these end offsets, once every record below is decided.

        Ends when the position of each named partition has reached its end offset, hidden records
        and control records passed. Records of other partitions, or beyond, are left for later.

        Raises:
            UndecidedError: a record below an end offset was undecided for too long.
            NotAssignedError: a named partition was not assigned to this member in time.
            And what iterating raises.
        """
        driver, source = self._open_driver(), self._open_source()
        remaining = dict(end_offsets)
        began = asyncio.get_running_loop().time()
        while remaining:
            yielded = False
            for data, end_offset in list(remaining.items()):
                queue = source.queue(data)
                for _ in range(TURN_RECORDS):
                    if not queue or queue[0].offset >= end_offset:
                        break
                    yielded = True
                    yield queue.popleft()
                position = source.position(data)
                if position is not None and position >= end_offset:
                    del remaining[data]
            if remaining and not yielded:
                await driver.changed(self._patience_s(driver, remaining, began))

    async def commit(self) -> None:
        """Commits the positions of what iterating has returned so far, not of what is buffered.

        With `acknowledgements`: commits now what is acknowledged, instead of within a second.

        Raises:
            FencedError: the group has moved a partition to another member.
            UnavailableError: the cluster stayed away.
        """
        await self._open_source().commit()

    def acknowledge(self, message: Message) -> None:
        """Takes a message as done; the group's cursor is committed within a second, and on leaving.

        A message that is not acknowledged is delivered again to the next member with its partition.

        Raises:
            AcknowledgementError: it was not delivered to this member, its partition was lost, it
                is acknowledged already, or in a transaction. Nothing was changed.
        """
        self.acknowledging.acknowledge(message)

    def acknowledge_cumulative(self, message: Message) -> None:
        """Takes a message, and all before it in its partition, as done; raises as `acknowledge`.

        It is refused as a whole when one of them is acknowledged in a transaction, or was never
        returned: messages may be held back for a transaction of another member while later ones
        come. After a rebalance others may have acknowledged some of them: see `rebalance_count`.
        """
        self.acknowledging.acknowledge_cumulative(message)

    def negative_acknowledge(self, message: Message) -> None:
        """Has a message delivered again after `redelivery_delay_s`; raises as `acknowledge`."""
        self.acknowledging.negative_acknowledge(message)

    @property
    def acknowledging(self) -> AcknowledgingDriver:
        """The driver with which transactions acknowledge; not for applications.

        Raises:
            ConfigError: the subscription was made without `acknowledgements`.
        """
        source = self._open_source()
        if not isinstance(source, AcknowledgingDriver):
            raise ConfigError(
                "the subscription does not take acknowledgements",
                hint="make it with `acknowledgements=True`",
            )
        return source

    def position(self, data: TopicPartition) -> EndOffset | None:
        """Everything below it was returned or is withheld for good; None: not assigned."""
        return self._open_source().position(data)

    @property
    def rebalance_count(self) -> int:
        """How often partitions have come or gone.

        Messages returned before the last time may have been delivered to another member since, also
        when their partition came back. An application that processes messages one by one and
        acknowledges cumulatively drops these messages; they are returned again.
        """
        return self._open_driver().rebalance_count

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """Counts of each assigned partition since it was assigned.

        `delivered` and `position` are of what iterating has returned.
        """
        return self._open_driver().statistics()

    @property
    def blocked(self) -> list[Blocked]:
        """The undecided record of each partition that has one, and for how long."""
        return list(self._open_driver().blocked().values())

    def _open_driver(self) -> SubscriptionDriver:
        assert self._driver is not None, "use it inside of `async with`"
        return self._driver

    def _open_source(self) -> SubscriptionDriver | AcknowledgingDriver:
        assert self._source is not None, "use it inside of `async with`"
        return self._source

    def _patience_s(
        self,
        driver: SubscriptionDriver,
        remaining: Mapping[TopicPartition, EndOffset],
        began: float,
    ) -> float | None:
        """How long to wait before looking again; raises when it has been long enough.

        Time before this call of `read_to` does not count: another attempt has the whole time again.
        """
        now = asyncio.get_running_loop().time()
        left_s: list[float] = []
        blocked = driver.blocked()
        for data, end_offset in remaining.items():
            if driver.position(data) is None:
                waited_s = now - max(began, driver.rebalanced_at)
                left_s.append(self._limits.assignment_timeout_s - waited_s)
                if left_s[-1] <= 0:
                    raise _not_assigned(data, self._options.group, waited_s)
            elif data in blocked and blocked[data].offset < end_offset:
                waited_s = min(now - began, blocked[data].waited_s)
                left_s.append(self._limits.undecided_timeout_s - waited_s)
                if left_s[-1] <= 0:
                    raise _undecided(blocked[data])
        return min(left_s, default=None)


def _undecided(blocked: Blocked) -> UndecidedError:
    return UndecidedError(
        f"transaction {blocked.txn} has been undecided for {blocked.waited_s:.1f} s",
        detail="no marker of it is known here, and nothing behind its record may be read before",
        hint="is a worker running, and is the transaction still open? it ends by its time-out",
        topic=blocked.data.topic,
        partition=blocked.data.partition,
        offset=blocked.offset,
    )


def _not_assigned(data: TopicPartition, group: str, waited_s: float) -> NotAssignedError:
    return NotAssignedError(
        f"group {group!r} has not assigned the partition to this member for {waited_s:.1f} s",
        hint="does it exist, and do other members of the group read it? read it with one member",
        topic=data.topic,
        partition=data.partition,
    )
