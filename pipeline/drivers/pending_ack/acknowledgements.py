"""Delivers records that are acknowledged one by one, and commits the cursors.

*Source*: docs/protocols G, G2 (rules in `core.pending_ack`); Pulsar's consumer.

*Invariants*:
- All state of an assignment ends with the assignment: a later assignment has another member id.
- The store learns of a cursor only after the group has committed the cursor.
- Those of `delivery` and `core.pending_ack.tracker`.
"""

import asyncio
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from stilltide.connectors.chance import Chance
from stilltide.connectors.errors import FencedError
from stilltide.connectors.ports.readers import Committed, Record
from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode, encode
from stilltide.pipeline.core.pending_ack.redeliveries import RedeliveryPolicy
from stilltide.pipeline.core.pending_ack.tracker import Tracker
from stilltide.pipeline.core.read_committed.machine import Statistics
from stilltide.pipeline.drivers.pending_ack.assigned_partition import (
    AckStore,
    AssignedPartition,
    Claimant,
    lost,
)
from stilltide.pipeline.drivers.pending_ack.delivery import AckDelivery, Attaching, SendDeadLetter
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.pipeline.errors import AlreadyAcknowledgedError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError, StilltideError
from stilltide.schemas.values import EndOffset, Offset, SubscriptionId, TopicPartition, TxnId

CLOSE_S = 5.0

_REDELIVERY = RedeliveryPolicy(first_ms=1000.0, factor=2.0, max_ms=60_000.0)

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AckOptions:
    """Limits and delays of acknowledging.

    Attributes:
        unacknowledged_records_max: most records delivered and not acknowledged, over all
            partitions.
        redelivery: when a message that failed is delivered again, and how often.
        commit_interval_s: time between two commits of cursors that move.
        patient: whether a store that does not answer is asked again without a limit; if not, its
            silence ends the subscription.
    """

    unacknowledged_records_max: int = 10_000
    redelivery: RedeliveryPolicy = _REDELIVERY
    commit_interval_s: float = 1.0
    patient: bool = False


class CursorCommits:
    """Commits with the group of a `SubscriptionDriver`.

    Args:
        driver: the member of the group.
        partitions: the assigned partitions, which the caller keeps up to date.
        tasks: runs the requests that send committed cursors to the store.
        attaching: attaches a member again that the store has replaced.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        partitions: Mapping[TopicPartition, AssignedPartition],
        tasks: Tasks,
        attaching: Attaching,
    ) -> None:
        self._driver = driver
        self._partitions = partitions
        self._tasks = tasks
        self._attaching = attaching
        self._committing = asyncio.Lock()

    async def run(self, interval_s: float) -> None:
        """Commits regularly until cancelled; raises as `commit`, except `FencedError`."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.commit()
            except FencedError as error:
                _log.info("a rebalance came before the commit", why=error.primary)

    async def commit(self) -> None:
        """Commits moved cursors (G Cursor); raises as `SubscriptionDriver.commit`."""
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
            self._driver.look()
            await self._driver.joined.commits.commit_cursors(
                {it.data: offset for it, (offset, _) in moved.items()},
                {it.data: metadata for it, (_, metadata) in moved.items()},
            )
            for partition, (offset, metadata) in moved.items():
                durable = decode(offset, metadata)
                assert durable is not None
                partition.committed, partition.metadata = durable, metadata
                self._tasks.start(self._tell(partition))

    async def _tell(self, partition: AssignedPartition) -> None:
        await partition.tell_cursor()
        self._attaching.soon(partition)


class AcknowledgingDriver:
    """Adds acknowledgements to a `SubscriptionDriver`, with the same calls for taking records.

    Args:
        driver: the member of the group.
        store: asks the pending-ack stores.
        group: name of the group.
        options: limits and delays.
        dead_letters: takes messages that were delivered too often; needed with a limit.
        chance: makes the ids of the store's members.
    """

    def __init__(
        self,
        driver: SubscriptionDriver,
        store: AckStore,
        group: str,
        options: AckOptions,
        dead_letters: SendDeadLetter | None = None,
        *,
        chance: Chance,
    ) -> None:
        self._driver = driver
        self._store = store
        self._group = group
        self._options = options
        self._partitions: dict[TopicPartition, AssignedPartition] = {}
        self._started = False
        self._tasks = Tasks(driver.changes.fail)
        self._delivery = AckDelivery(
            driver,
            self._partitions,
            options.unacknowledged_records_max,
            self._tasks,
            dead_letters=dead_letters,
            chance=chance,
        )
        self._attaching = self._delivery.attaching
        self._cursors = CursorCommits(driver, self._partitions, self._tasks, self._attaching)
        driver.listener = self

    def start(self) -> None:
        """Starts to commit cursors; the caller has started the `SubscriptionDriver`."""
        self._started = True
        self._tasks.start(self._cursors.run(self._options.commit_interval_s))

    def counted(self, data: TopicPartition, read: Statistics) -> Statistics:
        """The counts of a partition, with those of messages that failed (G2)."""
        partition = self._partitions.get(data)
        return read if partition is None else replace(read, **asdict(partition.counts))

    async def close(self) -> None:
        """Commits the cursors a last time, or logs the failure; does not close the driver.

        Without a `start` there is nothing to commit.

        The store does not learn of this commit: the next member brings the cursor. No task is
        started any more, though partitions may still be assigned and revoked.
        """
        self._delivery.close()
        await self._tasks.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                if self._started:
                    await self.commit()
        except (StilltideError, TimeoutError) as error:
            _log.warning("the cursor was not committed; messages come again", why=str(error))
        for partition in self._partitions.values():
            partition.revoke()  # so that the later end of a transaction changes nothing here

    # Calls for taking records: those of SubscriptionDriver.

    def next_queue(self) -> deque[Record]:
        """Records of the partition whose turn it is; see `SubscriptionDriver.next_queue`."""
        return self._delivery.next_queue()

    def queue(self, data: TopicPartition) -> deque[Record]:
        """Records of one partition; see `SubscriptionDriver.queue`."""
        return self._delivery.queue(data)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of what was returned or is withheld for good; None: not assigned."""
        return self._delivery.position(data)

    async def commit(self) -> None:
        """Commits every cursor that has moved; raises as `SubscriptionDriver.commit`."""
        await self._cursors.commit()

    async def seek(self, data: TopicPartition, offset: Offset) -> None:
        """Goes on as after a rebalance (G Seeking); raises as `SubscriptionDriver.seek`.

        The group's cursor becomes the offset: messages below are given up. What is acknowledged
        above stays so, and what is pending there is held back until its transaction has ended.

        Raises:
            AlreadyAcknowledgedError: the offset is below the cursor; nothing was changed.
        """
        self._driver.look()
        seeking = self._driver.joined.seeking
        await seeking.check(data, offset)
        cursor = self._partitions[data].cursor_at(self._driver.position(data))
        if offset < cursor.offset:
            raise AlreadyAcknowledgedError(
                f"every message below offset {cursor.offset} is acknowledged",
                detail="a message that is acknowledged is not delivered to the group again",
                hint="read the messages with another group, or without acknowledgements",
                data=data,
                offset=offset,
            )
        acknowledged = RangeSet(cursor.acknowledged)
        acknowledged.trim_below(offset)
        self.revoked([data])
        self._begin(data, Cursor(offset, acknowledged.ranges(), cursor.fields), None)
        self._delivery.withhold()
        await seeking.go_on({data: offset})

    # Calls of the application about messages.

    def acknowledge(self, message: Record) -> None:
        """Acknowledges a message; raises `AcknowledgementError`."""
        partition, tracker = _delivered(self._partitions, message)
        tracker.acknowledge(message.offset)
        partition.unprepare(message.offset, cumulative=False)
        self._delivery.freed()

    def acknowledge_cumulative(self, message: Record) -> None:
        """Acknowledges a message and all before it in its partition."""
        partition, tracker = _delivered(self._partitions, message)
        tracker.acknowledge_cumulative(message.offset, partition.unreturned(message.offset))
        partition.unprepare(message.offset, cumulative=True)
        self._delivery.freed()

    def negative_acknowledge(
        self, message: Record, error: str, *, undecodable: bool = False
    ) -> None:
        """Redelivers a message after its back-off; raises `AcknowledgementError`.

        Args:
            message: a message that was returned.
            error: why it has failed.
            undecodable: whether it becomes a dead letter at once, since it cannot be decoded.
        """
        partition, tracker = _delivered(self._partitions, message)
        partition.unprepare(message.offset, cumulative=False)  # it has failed as it was returned
        now_ms = self._delivery.now_ms()
        tracker.negative_acknowledge(message.offset, now_ms, error, undecodable=undecodable)
        self._delivery.arm()

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that the messages are from."""
        return self._driver.identity().cluster_id

    def claim(self, txn: Hashable, message: Record, *, cumulative: bool) -> AssignedPartition:
        """Reserves a message for a transaction (G Delivery); raises `AcknowledgementError`."""
        partition, tracker = _delivered(self._partitions, message)
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
        txn_client_id: bytes,
        offsets: Sequence[Offset],
        cumulative_offset: Offset | None,
    ) -> None:
        """Makes the store acknowledge messages in a transaction.

        Raises:
            AcknowledgementError, RefusedError: refused, with nothing changed.
            RequestTimeoutError: no answer in time.
        """
        try:
            await partition.acknowledge(txn, txn_client_id, offsets, cumulative_offset)
        finally:
            self._attaching.soon(partition)

    def ended(self, partition: AssignedPartition, txn: Hashable, failure: str | None) -> None:
        """A transaction that claimed messages has ended.

        Args:
            partition: the partition of the messages.
            txn: the transaction.
            failure: why the transaction was aborted or has no known outcome; None: it committed.
        """
        tracker = partition.tracker
        if partition.revoked or tracker is None:
            return
        if failure is None:
            position = self._driver.position(partition.data)
            tracker.committed(txn)
            partition.stored(position or 0)
            self._delivery.freed()
        else:
            tracker.unsettled(txn, failure)
            self._delivery.arm()

    # Assignment.

    def assigned(self, committed: Mapping[TopicPartition, Committed]) -> None:
        """See `AssignmentListener`."""
        for data, (offset, metadata) in committed.items():
            try:
                cursor = decode(offset, metadata)
            except DecodeError as error:
                self._driver.changes.fail(error.at(data.topic, data.partition, offset))
                return
            self._begin(data, cursor or Cursor(offset), metadata)
            if cursor is None:
                self._partitions[data].counts.foreign_commits += 1
                _log.warning(
                    "another program's commit metadata is passed over, and will be replaced",
                    topic=data.topic,
                    partition=data.partition,
                    offset=offset,
                    metadata=metadata[:64],
                )
        self._delivery.withhold()
        self._attaching.after(self._driver.joined.seeking.take_up(committed.keys()))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """See `AssignmentListener`."""
        for data in partitions:
            partition = self._partitions.pop(data, None)
            if partition is not None:
                partition.revoke()
                self._delivery.drop(data)
        self._delivery.freed()

    def kept(self, data: TopicPartition, offset: Offset) -> Committed:
        """See `AssignmentListener`."""
        partition, position = self._partitions.get(data), self._driver.position(data)
        if partition is None or position is None:
            return Committed(offset, "")
        cursor = partition.cursor_at(position)
        if offset < cursor.offset:
            return Committed(offset, "")
        cursor = cursor.moved(offset)
        return Committed(cursor.offset, encode(cursor))

    def _begin(self, data: TopicPartition, cursor: Cursor, metadata: str | None) -> None:
        identity = self._driver.identity()
        partition = self._partitions[data] = AssignedPartition(
            self._store,
            SubscriptionId(data, self._group),
            cursor,
            metadata,
            Claimant(identity.group_member, identity.client_name, identity.topic_ids[data.topic]),
            redelivery=self._options.redelivery,
            patient=self._options.patient,
        )
        self._delivery.open(data)
        self._attaching.soon(partition)


def _delivered(
    partitions: Mapping[TopicPartition, AssignedPartition], message: Record
) -> tuple[AssignedPartition, Tracker[Record]]:
    partition = partitions.get(TopicPartition(message.topic, message.partition))
    if partition is None or partition.tracker is None:
        raise lost(TopicPartition(message.topic, message.partition), message.offset)
    return partition, partition.tracker
