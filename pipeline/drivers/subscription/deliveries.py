"""Passes visible records on to the application: skips them, holds them back, or buffers them.

*Source*: docs/protocols D7, I11 (the decision is in `drivers.groups.read_elsewhere`).

*Invariants*: no record of a partition is handed out after `drop`; a position never passes a record
that was not taken.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Committed
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.read_committed.machine import Deliver, Reason, Statistics, Withheld
from stilltide.pipeline.drivers.groups.read_elsewhere import (
    ReadElsewhere,
    read_group_signals,
    tagged,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(slots=True, eq=False)
class _Assigned:
    """One partition from its assignment to its revocation."""

    committed: Committed | None
    elsewhere: ReadElsewhere | None = None  # None: not known yet
    held_back: list[Deliver[Record]] = field(default_factory=list[Deliver[Record]])
    skipped: int = 0

    def passed(self, batch: Deliver[Record]) -> Deliver[Record]:
        """The records that the group has not read anywhere."""
        assert self.elsewhere is not None
        records = self.elsewhere.unread(batch.payloads)
        self.skipped += len(batch.payloads) - len(records)
        return Deliver(records, batch.position)


Opened = Mapping[TopicPartition, _Assigned]


class ElsewhereFilter:
    """Skips, for one member of a group, the records that the group has read on other clusters.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        group: name of the consumer group.
        topic_ids: Kafka's ids of the topics that the group reads, by name.
    """

    def __init__(
        self, connector: Connector, admin: LogAdmin, group: str, topic_ids: Mapping[str, bytes]
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._group = group
        self._topic_ids = topic_ids
        self._partitions: dict[TopicPartition, _Assigned] = {}

    def open(self, committed: Mapping[TopicPartition, Committed | None]) -> Opened:
        """Begins these partitions; call `learn` with the result."""
        opened = {data: _Assigned(held) for data, held in committed.items()}
        self._partitions |= opened
        return opened

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition that is not read any more."""
        self._partitions.pop(data, None)

    async def learn(self, opened: Opened) -> None:
        """Finds out which records the group has read elsewhere; safe to call again.

        Raises:
            DecodeError: a signal, or the metadata of the group's commit, cannot be decoded.
            ConnectorError: the signals cannot be read.
        """
        signals = await read_group_signals(self._connector, self._admin, opened, self._group)
        for data, partition in opened.items():
            topic_id = self._topic_ids.get(data.topic)
            if topic_id is not None:  # None: the topic is gone, and the partition will be revoked
                partition.elsewhere = signals[data].for_member(partition.committed, topic_id)

    def passed(self, data: TopicPartition, batch: Deliver[Record]) -> Deliver[Record] | None:
        """The records to pass on to the application; None: they are held back."""
        partition = self._partitions[data]
        if partition.elsewhere is None or partition.held_back:
            partition.held_back.append(batch)
            return None
        return partition.passed(batch)

    def release(self, data: TopicPartition) -> list[Deliver[Record]]:
        """The records of a partition that were held back, once `learn` has returned."""
        partition = self._partitions.get(data)
        if partition is None or partition.elsewhere is None:
            return []
        batches, partition.held_back = partition.held_back, []
        return [partition.passed(found) for found in batches]

    @property
    def holding(self) -> set[TopicPartition]:
        """The partitions with records that are held back."""
        return {data for data, one in self._partitions.items() if one.held_back}

    def counts(self, data: TopicPartition) -> tuple[int, int]:
        """Records skipped so far, and records held back."""
        partition = self._partitions[data]
        return partition.skipped, sum(len(found.payloads) for found in partition.held_back)

    def metadata(
        self, cursors: Iterable[TopicPartition], metadata: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Metadata of a commit, with the group's generation where the group is replicated."""
        tagged_metadata = dict(metadata)
        for data in cursors:
            partition = self._partitions.get(data)
            elsewhere = partition.elsewhere if partition else None
            if elsewhere is not None and elsewhere.generation is not None:
                tagged_metadata[data] = tagged(metadata.get(data, ""), elsewhere.generation)
        return tagged_metadata


_NOTHING: deque[Record] = deque(maxlen=0)

_log = get_logger(__name__)


class DeliveredBuffer:
    """Records that the application may take, by partition; the caller keeps `count` in its limit.

    The application empties a queue from the left, which costs less than a call for each record.
    """

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._positions: dict[TopicPartition, EndOffset] = {}
        self._turns: deque[TopicPartition] = deque()

    @property
    def count(self) -> int:
        """The number of records that were not taken yet."""
        return sum(len(queue) for queue in self._queues.values())

    def open(self, data: TopicPartition, position: EndOffset) -> None:
        """Begins a partition at the position where its reader begins."""
        self._queues[data] = deque()
        self._positions[data] = position
        self._turns.append(data)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records."""
        self._queues.pop(data).clear()
        del self._positions[data]
        self._turns.remove(data)

    def put(self, data: TopicPartition, records: Iterable[Record], position: EndOffset) -> None:
        """Adds records in offset order; `position` is the partition's, once they are taken."""
        self._queues[data].extend(records)
        self._positions[data] = position

    def next_queue(self) -> deque[Record]:
        """The records of the partition whose turn it is; empty if no partition has records."""
        for _ in range(len(self._turns)):
            queue = self._queues[self._turns[0]]
            self._turns.rotate(-1)
            if queue:
                return queue
        return _NOTHING

    def queue(self, data: TopicPartition) -> deque[Record]:
        """The records of one partition; empty when the partition is not open."""
        return self._queues.get(data, _NOTHING)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of what was taken or is withheld for good; None: not open."""
        queue = self._queues.get(data)
        return EndOffset(queue[0].offset) if queue else self._positions.get(data)

    def positions(self) -> dict[TopicPartition, EndOffset]:
        """`position` of every open partition."""
        return {
            data: EndOffset(queue[0].offset) if queue else self._positions[data]
            for data, queue in self._queues.items()
        }


class Changes:
    """Shared by all tasks of one subscription; keeps the first failure."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        self._failure: Exception | None = None

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self._failure is not None:
            raise self._failure

    def wake(self) -> None:
        """Ends the wait of the application's call, which then checks for records again."""
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Ends the subscription: the application's next call raises `error`."""
        if self._failure is None:
            self._failure = error
        self._changed.set()

    async def wait(self, timeout_s: float | None) -> None:
        """Returns once `wake` or `fail` was called since the last wait, or after the time-out.

        For the application's call, which has taken all records that there are.
        """
        self._wanted.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def wanted(self) -> None:
        """Returns once the application has taken all records, and waits for more."""
        self._wanted.clear()
        await self._wanted.wait()


class Deliveries:
    """Takes the records that the machines deliver.

    Args:
        changes: wakes the application's call when there are more records to take.

    Attributes:
        buffer: the records that are ready to be taken.
        elsewhere: skips records that the group has read on other clusters; None: no group is
            replicated.
    """

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.buffer = DeliveredBuffer()
        self.elsewhere: ElsewhereFilter | None = None
        self._reported: set[tuple[TopicPartition, Reason]] = set()

    def open(
        self,
        positions: Mapping[TopicPartition, Offset],
        committed: Mapping[TopicPartition, Committed | None],
    ) -> Opened:
        """Begins these partitions; call `learn` with the result.

        Args:
            positions: positions at which reading begins.
            committed: the group's commits for the same partitions.
        """
        for data, position in positions.items():
            self.buffer.open(data, EndOffset(position))
        return {} if self.elsewhere is None else self.elsewhere.open(committed)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records."""
        self.buffer.drop(data)
        self._reported -= {(data, reason) for reason in Reason}
        if self.elsewhere is not None:
            self.elsewhere.drop(data)

    async def learn(self, opened: Opened) -> None:
        """Finds out which records the group has read elsewhere; raises as `ElsewhereFilter.learn`.

        Safe to call again. `release` passes on the records that were held back meanwhile.
        """
        if self.elsewhere is not None:
            await self.elsewhere.learn(opened)

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Passes on the records that were held back until `learn` had returned."""
        if self.elsewhere is None:
            return
        for data in partitions:
            for passed in self.elsewhere.release(data):
                self.buffer.put(data, passed.payloads, passed.position)

    def delivered(self, data: TopicPartition, batch: Deliver[Record]) -> None:
        """Takes visible records of a partition."""
        passed = self.elsewhere.passed(data, batch) if self.elsewhere else batch
        if passed is not None:
            self.buffer.put(data, passed.payloads, passed.position)
            self.changes.wake()

    def withheld(self, data: TopicPartition, withheld: Withheld) -> None:
        """Logs the first record withheld from a partition for each reason; statistics count all."""
        if (data, withheld.reason) in self._reported:
            return
        self._reported.add((data, withheld.reason))
        _log.warning(
            "a record is withheld; more like it of this partition are counted, not logged",
            topic=data.topic,
            partition=data.partition,
            offset=withheld.offset,
            reason=withheld.reason.value,
            txn=str(withheld.txn) if withheld.txn else None,
        )

    @property
    def holding(self) -> set[TopicPartition]:
        """The partitions with records that are held back."""
        return set() if self.elsewhere is None else self.elsewhere.holding

    def metadata(
        self, cursors: Iterable[TopicPartition], metadata: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Metadata of a commit, with the group's generation where the group is replicated."""
        return metadata if self.elsewhere is None else self.elsewhere.metadata(cursors, metadata)

    def statistics(self, data: TopicPartition, read: Statistics) -> Statistics:
        """The counts of an open partition; `delivered` counts what the application has taken."""
        position = self.buffer.position(data)
        assert position is not None
        skipped, held_back = self.elsewhere.counts(data) if self.elsewhere else (0, 0)
        delivered = read.delivered - len(self.buffer.queue(data)) - skipped - held_back
        return replace(read, delivered=delivered, skipped=skipped, position=position)
