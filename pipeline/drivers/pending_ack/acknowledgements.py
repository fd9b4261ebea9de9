"""Delivers records that are acknowledged one by one, and commits how far that has come.

*Source*: protocols.md G (rules in `core.pending_ack`); pulsar.md 5.

*Invariants*:
- Nothing of a partition is handed out before the store has said what is pending there.
- The store is told of a cursor only after the group has committed it.
- Records handed out and not acknowledged are bounded; delivery waits beyond.
- What belongs to an assignment ends with it: a later one has a member id of its own.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from stilltide.connectors.errors import FencedError
from stilltide.connectors.ports.readers import Committed
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode, encode
from stilltide.pipeline.core.pending_ack.tracker import Ask, Tracker
from stilltide.pipeline.drivers.pending_ack.assigned_partition import (
    AckStore,
    AssignedPartition,
    lost,
)
from stilltide.pipeline.drivers.subscription.subscription import TURN_RECORDS, SubscriptionDriver
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

ATTACH_AGAIN_S = 0.5
CLOSE_S = 5.0
_NOTHING: deque[Record] = deque(maxlen=0)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AckOptions:
    """How records are acknowledged.

    Attributes:
        unacknowledged_records_max: handed out and not acknowledged, over all partitions.
        redelivery_delay_s: from a negative acknowledgement to the next delivery.
        commit_interval_s: between two commits of cursors that move.
    """

    unacknowledged_records_max: int = 10_000
    redelivery_delay_s: float = 1.0
    commit_interval_s: float = 1.0


class AcknowledgingDriver:
    """Stands between a `SubscriptionDriver` and the application, with the same calls."""

    def __init__(
        self, driver: SubscriptionDriver, store: AckStore, group: str, options: AckOptions
    ) -> None:
        self._driver = driver
        self._store = store
        self._group = group
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self._turns: deque[TopicPartition] = deque()
        self._stuck: set[TopicPartition] = set()
        self._starved = False
        self._attaching: set[AssignedPartition] = set()
        self._committing = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False  # nothing is begun any more, though partitions may come and go
        driver.listener = self

    def start(self) -> None:
        """Commits cursors from now on; the driver is started by its owner."""
        self._spawn(self._commit_regularly())

    async def close(self) -> None:
        """Commits the cursors a last time; a failure to do so is logged. Closes no driver.

        The store is not told: the next member brings it the cursor.
        """
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.commit()
        except (StilltideError, TimeoutError) as error:
            _log.warning("the cursor was not committed; messages come again", why=str(error))
        for partition in self._partitions.values():
            partition.revoke()  # transactions that end later find nothing to do here

    # What iterating asks for: as of SubscriptionDriver.

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
        """Everything below it was returned or is withheld for good; None: not assigned."""
        partition, position = self._partitions.get(data), self._driver.position(data)
        if partition is None or position is None:
            return None
        if partition.ready:
            position = min(position, EndOffset(partition.ready[0].offset))
        held = None if partition.tracker is None else partition.tracker.held_back
        return position if held is None else min(position, EndOffset(held))

    # What the application says of messages.

    def acknowledge(self, message: Record) -> None:
        """Takes a message as done; raises `AcknowledgementError`."""
        partition, tracker = self._delivered(message)
        tracker.acknowledge(message.offset)
        partition.unprepare(message.offset, cumulative=False)
        self._freed()

    def acknowledge_cumulative(self, message: Record) -> None:
        """Takes a message, and all before it in its partition, as done."""
        partition, tracker = self._delivered(message)
        tracker.acknowledge_cumulative(message.offset, partition.unreturned(message.offset))
        partition.unprepare(message.offset, cumulative=True)
        self._freed()

    def negative_acknowledge(self, message: Record) -> None:
        """Has a message delivered again after the delay; raises `AcknowledgementError`."""
        partition, tracker = self._delivered(message)
        tracker.negative_acknowledge(message.offset, self._now_ms())
        partition.unprepare(message.offset, cumulative=False)
        self._arm()

    def claim(self, txn: Hashable, message: Record, *, cumulative: bool) -> AssignedPartition:
        """Takes a message as acknowledged in a transaction; raises `AcknowledgementError`."""
        partition, tracker = self._delivered(message)
        if cumulative:
            tracker.claim_cumulative(txn, message.offset, partition.unreturned(message.offset))
        else:
            tracker.claim(txn, message.offset)
        partition.unprepare(message.offset, cumulative=cumulative)
        return partition

    # Transactions.

    async def send(
        self,
        partition: AssignedPartition,
        txn: TxnId,
        offsets: Sequence[Offset],
        cumulative_offset: Offset | None,
    ) -> None:
        """Has the store acknowledge messages in a transaction.

        Raises:
            AcknowledgementError, RefusedError: refused, with nothing changed.
            RequestTimeoutError: no answer in time.
        """
        try:
            await partition.acknowledge(txn, offsets, cumulative_offset)
        finally:
            self._attach_soon(partition)

    def ended(self, partition: AssignedPartition, txn: Hashable, *, committed: bool) -> None:
        """A transaction that claimed messages has ended: surely committed, or who knows how."""
        tracker = partition.tracker
        if partition.revoked or tracker is None:
            return
        if committed:
            position = self._driver.position(partition.data)
            tracker.committed(txn)
            partition.stored(position or 0)
            self._freed()
        else:
            tracker.unsettled(txn)
            self._arm()

    # Cursors.

    async def commit(self) -> None:
        """Commits the cursor of every partition where it has moved; see `SubscriptionDriver`."""
        async with self._committing:
            moved: dict[AssignedPartition, tuple[Offset, str]] = {}
            for data, partition in self._partitions.items():
                position = self._driver.position(data)
                if partition.tracker is None or position is None:
                    continue
                cursor = partition.tracker.cursor(position)
                metadata = encode(cursor)
                if (cursor.offset, metadata) != (partition.committed.offset, partition.metadata):
                    moved[partition] = cursor.offset, metadata
            await self._driver.commit_cursors(
                {it.data: offset for it, (offset, _) in moved.items()},
                {it.data: metadata for it, (_, metadata) in moved.items()},
            )
            for partition, (offset, metadata) in moved.items():
                durable = decode(offset, metadata)
                assert durable is not None
                partition.committed, partition.metadata = durable, metadata
                self._spawn(self._tell(partition))

    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._options.commit_interval_s)
            try:
                await self.commit()
            except FencedError as error:
                _log.info("a rebalance came before the commit", why=error.primary)

    async def _tell(self, partition: AssignedPartition) -> None:
        await partition.tell_cursor()
        self._attach_soon(partition)

    # Assignment.

    def assigned(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """See `AssignmentListener`."""
        for data, (offset, metadata) in committed.items():
            try:
                cursor = decode(offset, metadata)
            except DecodeError as error:
                self._driver.fail(error.at(data.topic, data.partition, offset))
                return
            if cursor is None:
                cursor = Cursor(offset)
                _log.warning(
                    "another tool's commit metadata is not understood, and will be replaced",
                    topic=data.topic,
                    partition=data.partition,
                    metadata=metadata[:64],
                )
            partition = AssignedPartition(
                self._store,
                SubscriptionId(data, self._group),
                cursor,
                metadata,
                redelivery_delay_ms=self._options.redelivery_delay_s * 1000,
            )
            self._partitions[data] = partition
            self._turns.append(data)
            self._stuck.add(data)
            self._attach_soon(partition)
        self._driver.withhold(self._stuck)

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `AssignmentListener`."""
        for data in partitions:
            partition = self._partitions.pop(data, None)
            if partition is not None:
                partition.revoke()
                self._turns.remove(data)
                self._stuck.discard(data)
        self._freed()

    def _attach_soon(self, partition: AssignedPartition) -> None:
        """Takes the subscription over, if it has none or was replaced."""
        if not partition.attached and not partition.revoked and partition not in self._attaching:
            self._attaching.add(partition)
            self._spawn(self._attach(partition))

    async def _attach(self, partition: AssignedPartition) -> None:
        try:
            await partition.attach()
        finally:
            self._attaching.remove(partition)
        if not partition.revoked:
            self._set_stuck(partition.data, stuck=False)
            self._driver.wake()

    # Delivery.

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
        """Takes over what may be delivered, as far as the limits go."""
        tracker = partition.tracker
        if tracker is None:
            return
        room = self._options.unacknowledged_records_max - self._unacknowledged()
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
            self._arm()

    def _set_stuck(self, data: TopicPartition, *, stuck: bool) -> None:
        """A partition that stands still must not fill the buffer of all."""
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
        self._driver.withhold(self._stuck)

    def _unacknowledged(self) -> int:
        trackers = (it.tracker for it in self._partitions.values())
        return sum(it.unacknowledged for it in trackers if it is not None)

    def _freed(self) -> None:
        """Something was acknowledged: what waits for room looks again."""
        if self._starved or self._stuck:
            self._driver.wake()

    def _delivered(self, message: Record) -> tuple[AssignedPartition, Tracker[Record]]:
        partition = self._partitions.get(TopicPartition(message.topic, message.partition))
        if partition is None or partition.tracker is None:
            raise lost(TopicPartition(message.topic, message.partition), message.offset)
        return partition, partition.tracker

    # Time.

    def _now_ms(self) -> float:
        return self._loop.time() * 1000

    def _arm(self) -> None:
        """Looks again when something is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        trackers = (it.tracker for it in self._partitions.values())
        dues = [it.deadline_ms for it in trackers if it is not None and it.deadline_ms is not None]
        if dues and not self._closed:
            self._timer = self._loop.call_at(min(dues) / 1000, self._due)

    def _due(self) -> None:
        now_ms = self._now_ms()
        for partition in self._partitions.values():
            if partition.tracker is None:
                continue
            if again := partition.tracker.redelivered(now_ms):
                partition.prepare(again)
                self._driver.wake()
            for ask in partition.tracker.tick(now_ms):
                self._spawn(self._describe(partition, ask))
        self._arm()

    async def _describe(self, partition: AssignedPartition, ask: Ask) -> None:
        await partition.describe(ask, self._now_ms)
        self._arm()
        self._freed()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something beside; its failure ends the subscription."""
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._driver.fail(error)
