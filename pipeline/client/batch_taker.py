"""Takes batches of a subscription's messages, when there are enough of them.

*Source*: `Subscription.batches`.

*Invariants*: a batch is taken when it is returned: no record of a lost partition is in it, and no
position passes a record that waits for others. Once the wait is over each partition is returned
with what it has: a partition with few records does not wait for one with many. No wait is longer
than records can come.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any

from stilltide.pipeline.client.batches import MessageBatch
from stilltide.pipeline.client.decoding import Decoding
from stilltide.pipeline.drivers.pending_ack.acknowledgements import AcknowledgingDriver
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver


class BatchTaker:
    """Takes the batches of one open subscription; used by one task at a time.

    Args:
        driver: reads the records.
        source: has the records to take; the same driver, or the one that acknowledges.
        decoding: decodes them; None: messages are bytes.
        records_max: largest number of records in a batch.
        wait_s_max: longest wait for that number from the first record on, seconds.
        buffer_records_max: records of all partitions beyond which none is fetched: a wait for more
            would be in vain.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        source: SubscriptionDriver | AcknowledgingDriver,
        decoding: Decoding | None,
        *,
        records_max: int,
        wait_s_max: float,
        buffer_records_max: int,
    ) -> None:
        self._driver = driver
        self._source = source
        self._decoding = decoding
        self._records_max = records_max
        self._wait_s_max = wait_s_max
        self._buffer_records_max = buffer_records_max
        self._deliveries = deliveries = driver.joined.deliveries
        self._due_s: float | None = None
        self._left = 0  # partitions that are returned with what they have
        deliveries.turn_records = max(deliveries.turn_records, records_max)
        if wait_s_max:
            deliveries.ahead_records = max(deliveries.ahead_records, records_max)

    async def next(self) -> MessageBatch:
        """The next batch; waits, and raises as `Subscription.batches`."""
        while True:
            records_min = await self._records_min() if self._wait_s_max else 1
            batch = await self._taken(records_min)
            if batch is not None:
                return batch

    async def _taken(self, records_min: int) -> MessageBatch | None:
        """A batch of the partition whose turn it is; None: look again."""
        driver = self._driver
        if self._source is driver and self._decoding is None:
            driver.look()
            taken = self._deliveries.take(self._records_max, records_min)
            if taken is None and driver.fetch():
                taken = self._deliveries.take(self._records_max, records_min)
            if taken is not None:
                return MessageBatch(*taken)
        elif queue := self._source.next_queue():
            messages: list[Any]
            if self._decoding is not None:
                messages = await self._decoding.take(queue, self._records_max)
            else:
                count = min(len(queue), self._records_max)
                messages = [queue.popleft() for _ in range(count)]
            if not messages:
                return None
            return MessageBatch.of(messages, self._decoded(messages[0].topic))
        await driver.changed()
        return None

    def _decoded(self, topic: str) -> Collection[str]:
        return () if self._decoding is None else self._decoding.fields(topic)

    async def _records_min(self) -> int:
        """Waits; returns how many records a partition must have to be returned now."""
        now_s = asyncio.get_running_loop().time
        while True:
            counts = self._counts()
            if self._left and counts:
                self._left -= 1
                return 1
            self._left = 0
            if not counts:
                self._due_s = None
                if not self._driver.fetch():
                    await self._driver.changed()
                continue
            if self._due_s is None:
                self._due_s = now_s() + self._wait_s_max
            left_s = self._due_s - now_s()
            if left_s <= 0 or sum(counts) >= self._buffer_records_max:
                self._due_s, self._left = None, len(counts)
            elif max(counts) >= self._records_max:
                return self._records_max
            else:
                await self._driver.changed(left_s)

    def _counts(self) -> list[int]:
        """The number of records of each partition that has some."""
        self._driver.look()
        counts = [count for count in self._deliveries.counts().values() if count]
        # Messages that are delivered again wait with the driver that acknowledges.
        if self._source is not self._driver and (queue := self._source.next_queue()):
            counts.append(len(queue) + self._deliveries.count_of(queue[0].data))
        return counts


class Batches(AsyncGenerator[MessageBatch, None]):
    """The batches of one subscription, until it is closed.

    Unlike a generator's, the next call after a time-out or an error goes on: a loop over batches
    never ends because a wait did.

    Args:
        begin: makes what takes the batches, when the first one is asked for.
    """

    def __init__(self, begin: Callable[[], BatchTaker]) -> None:
        self._begin = begin
        self._taker: BatchTaker | None = None
        self._closed = False

    async def asend(self, value: None) -> MessageBatch:  # noqa: ARG002 - of generators
        """The next batch."""
        if self._closed:
            raise StopAsyncIteration
        if self._taker is None:
            self._taker = self._begin()
        return await self._taker.next()

    async def athrow(self, *error: Any) -> MessageBatch:
        """As of a generator that does not catch the error."""
        self._closed = True
        raise error[0]
