"""Delivers records that are acknowledged one by one, within limits, and again when they are due.

*Source*: docs/protocols G, G2 (rules in `core.pending_ack`).

*Invariants*:
- No record of a partition is delivered before its tracker exists, after the store's first answer.
- The number of records delivered and not acknowledged is bounded; at the limit delivery waits.
- A partition that cannot be delivered is not fetched: its records would fill the shared buffer.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from stilltide.connectors.chance import Chance
from stilltide.connectors.ports.readers import Record, RedeliveredRecord
from stilltide.pipeline.core.pending_ack.redeliveries import DeadLetter, Redeliver, Redelivery
from stilltide.pipeline.core.pending_ack.tracker import Ask
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, TopicPartition

_NOTHING: deque[Record] = deque(maxlen=0)

_log = get_logger(__name__)


SendDeadLetter = Callable[[AssignedPartition, DeadLetter[Record]], None]
"""Takes a message that was delivered too often, and its partition; returns at once."""


class AckDelivery:
    """Takes records from a `SubscriptionDriver`, and has the same calls for taking them.

    Args:
        driver: reads the records.
        partitions: the assigned partitions, which the caller keeps up to date.
        unacknowledged_records_max: most records delivered and not acknowledged, over all
            partitions.
        tasks: runs the requests to the stores.
        dead_letters: takes messages that were delivered too often; None: there is no limit.
        chance: makes the ids of the stores' members.

    Attributes:
        attaching: attaches the partitions to their stores.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        partitions: Mapping[TopicPartition, AssignedPartition],
        unacknowledged_records_max: int,
        tasks: Tasks,
        *,
        dead_letters: SendDeadLetter | None,
        chance: Chance,
    ) -> None:
        self._driver = driver
        self._partitions = partitions
        self._records_max = unacknowledged_records_max
        self._tasks = tasks
        self._dead_letters = dead_letters
        self.attaching = Attaching(self, tasks, chance)
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._due)
        self._closed = False
        self._turns: deque[TopicPartition] = deque()
        self._stuck: set[TopicPartition] = set()
        self._starved = False

    def open(self, data: TopicPartition) -> None:
        """Begins a partition, which delivers after `attached`; the caller calls `withhold` next."""
        self._turns.append(data)
        self._stuck.add(data)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition."""
        self._turns.remove(data)
        self._stuck.discard(data)

    def withhold(self) -> None:
        """Stops fetching the partitions that cannot be delivered."""
        self._driver.joined.intake.withhold(self._stuck)

    def attached(self, data: TopicPartition) -> None:
        """The store has answered for a partition: its records may be delivered."""
        self._set_stuck(data, stuck=False)
        self._driver.changes.wake()

    def freed(self) -> None:
        """A message was acknowledged: there may be room for the records that wait."""
        if self._starved or self._stuck:
            self._driver.changes.wake()

    def next_queue(self) -> deque[Record]:
        """Records of the partition whose turn it is; see `SubscriptionDriver.next_queue`."""
        self._driver.look()
        queue = self._next_ready()
        if not queue and not self._starved and self._driver.fetch():
            queue = self._next_ready()
        return queue

    def queue(self, data: TopicPartition) -> deque[Record]:
        """Records of one partition; see `SubscriptionDriver.queue`."""
        self._driver.look()
        return self._ready(data)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of what was returned or is withheld for good; None: not assigned."""
        partition, position = self._partitions.get(data), self._driver.position(data)
        if partition is None or position is None:
            return None
        if partition.ready:
            position = min(position, EndOffset(partition.ready[0].offset))
        held_back = None if partition.tracker is None else partition.tracker.held_back
        return position if held_back is None else min(position, EndOffset(held_back))

    def _next_ready(self) -> deque[Record]:
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            if queue := self._ready(self._turns[-1]):
                return queue
        return _NOTHING

    def _ready(self, data: TopicPartition) -> deque[Record]:
        partition = self._partitions.get(data)
        if partition is None:
            return _NOTHING
        if not partition.ready and (source := self._driver.buffered(data)):
            self._refill(partition, source)
        return partition.ready

    def _refill(self, partition: AssignedPartition, source: deque[Record]) -> None:
        """Takes the next records that the tracker admits (G Cursor), within the limits."""
        tracker = partition.tracker
        if tracker is None:
            return
        room = self._records_max - self._unacknowledged()
        self._starved = room <= 0
        stuck = False
        while room > 0 and source:
            offset = source[0].offset
            if stuck := not tracker.admits(offset):
                break
            record = source.popleft()
            if tracker.taken(offset, record):
                partition.ready.append(record)
            room -= 1
        self._set_stuck(partition.data, stuck=stuck)
        if tracker.held_back is not None:
            self.arm()

    def _set_stuck(self, data: TopicPartition, *, stuck: bool) -> None:
        if stuck == (data in self._stuck):
            return
        if stuck:
            self._stuck.add(data)
            _log.warning(
                "delivery waits: the acknowledgements would not fit into the group's commit",
                topic=data.topic,
                partition=data.partition,
                hint="acknowledge the oldest message",
            )
        else:
            self._stuck.remove(data)
        self.withhold()

    def _unacknowledged(self) -> int:
        trackers = (it.tracker for it in self._partitions.values())
        return sum(it.unacknowledged for it in trackers if it is not None)

    def now_ms(self) -> float:
        """The time by the trackers' clock."""
        return self._loop.time() * 1000

    def arm(self) -> None:
        """Arms the alarm for every deadline; call it when a deadline may have changed."""
        if self._closed:
            return
        now_ms = self.now_ms()
        for partition in self._partitions.values():
            if partition.tracker is not None:
                self._alarm.arm(partition.tracker.deadline_ms, now_ms)

    def close(self) -> None:
        """Stops the timer for good."""
        self._closed = True
        self._alarm.cancel()

    def _due(self) -> None:
        now_ms = self.now_ms()
        for partition in self._partitions.values():
            if partition.tracker is None:
                continue
            if again := partition.tracker.redelivered(now_ms):
                self._carry_out(partition, again)
            for ask in partition.tracker.tick(now_ms):
                self._tasks.start(self._describe(partition, ask))
        self.arm()

    def _carry_out(self, partition: AssignedPartition, due: Sequence[Redelivery[Record]]) -> None:
        partition.prepare(
            [
                RedeliveredRecord.of(message.payload, message.deliveries)
                for message in due
                if isinstance(message, Redeliver)
            ]
        )
        for letter in due:
            if isinstance(letter, DeadLetter):
                assert self._dead_letters is not None, "a limit of deliveries needs a sender"
                self._dead_letters(partition, letter)
        self._driver.changes.wake()

    async def _describe(self, partition: AssignedPartition, ask: Ask) -> None:
        await partition.describe(ask)
        self.attaching.soon(partition)
        self.arm()
        self._driver.changes.wake()


class Attaching:
    """Attaches each partition by one task at a time.

    Args:
        delivery: delivers the records of a partition that is attached and was not revoked.
        tasks: runs the requests.
        chance: makes the ids of the store's members.
    """

    def __init__(self, delivery: "AckDelivery", tasks: Tasks, chance: Chance) -> None:
        self._delivery = delivery
        self._tasks = tasks
        self._chance = chance
        self._under_way: set[AssignedPartition] = set()
        self._checking: asyncio.Task[object] | None = None

    def after(self, check: Coroutine[Any, Any, object]) -> None:
        """Attaches no partition before the check has ended.

        A cursor beyond the end would count every message of the log as acknowledged.
        """
        self._checking = self._tasks.start(check)

    def soon(self, partition: AssignedPartition) -> None:
        """Attaches to the store, if the member is not attached or was replaced."""
        if not partition.attached and not partition.revoked and partition not in self._under_way:
            self._under_way.add(partition)
            self._tasks.start(self._attach(partition))

    async def _attach(self, partition: AssignedPartition) -> None:
        try:
            if self._checking is not None:
                await asyncio.shield(self._checking)
            await partition.attach(self._chance)
        finally:
            self._under_way.remove(partition)
        if not partition.revoked:
            self._delivery.attached(partition.data)
