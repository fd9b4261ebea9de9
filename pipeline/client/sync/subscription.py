"""Reads committed records in programs without an event loop.

*Source*: docs/services.md. The names, arguments and errors are those of `Subscription`.

*Invariants*: a message that a call had taken when the call was interrupted is returned by the next
call, and its position is not committed before.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self, Unpack

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.client.batches import Message, MessageBatch
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.client.subscription_options import SubscriptionKeywords
from stilltide.pipeline.client.sync.loop_thread import LoopCalls
from stilltide.pipeline.client.sync.taking import Taking
from stilltide.pipeline.client.usage import not_open
from stilltide.pipeline.core.read_committed.machine import Statistics
from stilltide.pipeline.drivers.read_committed.decided import Blocked
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class OpenKeywords(SubscriptionKeywords, total=False):
    """Keyword arguments of `Subscription`."""

    group: str
    bootstrap_servers: str | None
    connector: Connector | None
    client_id: str
    from_start: bool
    since_ms: int | None
    acknowledgements: bool
    dead_letter_topic: str | None


class SyncSubscription:
    """Reads topics as a member of a consumer group; a context manager and an iterator.

        with Subscription(["orders"], group="billing", bootstrap_servers="...") as orders:
            for message in orders:
                ...
                orders.commit()

    Several threads may take messages; each message goes to one of them. `close` on another thread
    ends the loops. Open a subscription after the process was forked.

    Args:
        topics: as for `Subscription`.
        options: the other arguments of `Subscription`, by name; `group` is needed.

    Raises:
        As `Subscription`.
    """

    def __init__(self, topics: str | Sequence[str], **options: Unpack[OpenKeywords]) -> None:
        self._subscription = Subscription(topics, **options)  # pyright: ignore[reportCallIssue]
        acknowledgements = options.get("acknowledgements", False)
        self._taking = Taking(self._subscription, positions=not acknowledgements)
        self._calls: LoopCalls | None = None
        self._closed = False

    @property
    def on_loop(self) -> Subscription:
        """The subscription of the event loop, for transactions; not for applications."""
        return self._subscription

    def __enter__(self) -> Self:
        calls = self._calls or LoopCalls("subscription")
        calls.run(self._subscription.__aenter__())
        # What a thread processes is current in the thread, and not on the event loop.
        self._taking.tracing, self._subscription.tracing = self._subscription.tracing, None
        self._calls, self._closed = calls, False
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the group; loops over the subscription on other threads end."""
        if self._calls is not None:
            calls, self._calls, self._closed = self._calls, None, True
            self._taking.left()
            calls.call(self._taking.stop)
            calls.run(self._subscription.__aexit__(None, None, None))

    def __iter__(self) -> Iterator[Message]:
        """The visible records; waits for more without limit; raises as `Subscription` does."""
        return (
            self if self._taking.tracing is None else self._taking.loop(iter(self.__next__, None))
        )

    def __next__(self) -> Message:
        """The next visible record; ends the loop when the subscription is closed meanwhile."""
        message = None if self._closed else self._taking.next(self._opened())
        if message is None:
            raise StopIteration
        return message

    def batches(self, records_max: int = 500, wait_s_max: float = 0.0) -> Iterator[MessageBatch]:
        """The visible records in batches of one partition each; as `Subscription.batches`.

        Much cheaper than one message at a time, because each batch is one call of the event loop.

        Args:
            records_max: largest number of records in a batch, >= 1.
            wait_s_max: longest wait for so many records, seconds, >= 0.
        """
        batches = self._subscription.batches(records_max, wait_s_max)
        return self._taking.batches(self._opened(), batches)

    def read_to(self, end_offsets: Mapping[TopicPartition, EndOffset]) -> Iterator[Message]:
        """The visible records below these end offsets; as `Subscription.read_to`."""
        return self._taking.each(self._opened(), self._subscription.read_to(end_offsets))

    def commit(self) -> None:
        """Commits the positions of the records returned so far; as `Subscription.commit`."""
        self._opened().run(self._taking.commit())

    def acknowledge(self, message: Record | MessageBatch) -> None:
        """Marks a message, or a batch of them, as done; as `Subscription.acknowledge`."""
        self._opened().call(self._subscription.acknowledge, message)

    def acknowledge_cumulative(self, message: Record | MessageBatch) -> None:
        """Marks a message and all before it in its partition as done."""
        self._opened().call(self._subscription.acknowledge_cumulative, message)

    def negative_acknowledge(
        self, message: Record, error: str | BaseException = "negatively acknowledged"
    ) -> None:
        """Says that a message could not be processed; as `Subscription.negative_acknowledge`."""
        self._opened().call(self._subscription.negative_acknowledge, message, error)

    def seek(self, data: TopicPartition, offset: int) -> None:
        """Goes on reading a partition at an offset; as `Subscription.seek`."""
        self._opened().run(self._subscription.seek(data, offset))

    def seek_to_time(
        self, timestamp_ms: int, partitions: Collection[TopicPartition] | None = None
    ) -> dict[TopicPartition, Offset]:
        """Goes on at the first record at or after a time; as `Subscription.seek_to_time`."""
        return self._opened().run(self._subscription.seek_to_time(timestamp_ms, partitions))

    def position(self, data: TopicPartition) -> EndOffset | None:
        """Every record below this offset was returned, or never will be; None: not assigned."""
        return self._opened().call(self._subscription.position, data)

    @property
    def rebalance_count(self) -> int:
        """How often partitions were assigned or revoked; as `Subscription.rebalance_count`."""
        return self._opened().call(lambda: self._subscription.rebalance_count)

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """Counts of each assigned partition since its assignment."""
        return self._opened().call(self._subscription.statistics)

    @property
    def blocked(self) -> list[Blocked]:
        """The undecided record at which each blocked partition waits, and since how long."""
        return self._opened().call(lambda: self._subscription.blocked)

    def _opened(self) -> LoopCalls:
        if self._calls is None:
            raise not_open("subscription", "open it: `with Subscription(...) as messages:`")
        return self._calls
