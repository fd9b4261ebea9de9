"""Delivers records that are acknowledged one by one, within the limits.

*Source*: docs/protocols G (rules in `core.pending_ack`).

*Invariants*:
- No record of a partition is delivered before its tracker exists, after the store's first answer.
- The number of records delivered and not acknowledged is bounded; at the limit delivery waits.
- A partition that cannot be delivered is not fetched: its records would fill the shared buffer.
"""

from collections import deque
from collections.abc import Callable, Mapping

from stilltide.connectors.ports.records import Record
from stilltide.pipeline.drivers.pending_ack.assigned_partition import AssignedPartition
from stilltide.pipeline.drivers.subscription.subscription import TURN_RECORDS, SubscriptionDriver
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, TopicPartition

_NOTHING: deque[Record] = deque(maxlen=0)

_log = get_logger(__name__)


class AckDelivery:
    """Takes records from a `SubscriptionDriver`, and has the same calls for taking them.

    Args:
        driver: reads the records.
        partitions: the assigned partitions, which the caller keeps up to date.
        unacknowledged_records_max: most records delivered and not acknowledged, over all
            partitions.
        held_back: called when a tracker holds a record back, about which the store must be asked.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        partitions: Mapping[TopicPartition, AssignedPartition],
        unacknowledged_records_max: int,
        held_back: Callable[[], None],
    ) -> None:
        self._driver = driver
        self._partitions = partitions
        self._records_max = unacknowledged_records_max
        self._held_back = held_back
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
        held = None if partition.tracker is None else partition.tracker.held_back
        return position if held is None else min(position, EndOffset(held))

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
        """Takes the next records that the tracker admits, within the limits."""
        tracker = partition.tracker
        if tracker is None:
            return
        room = self._records_max - self._unacknowledged()
        self._starved = room <= 0
        room = min(room, TURN_RECORDS)
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
            self._held_back()

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
