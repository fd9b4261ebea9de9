"""Passes visible records on to the application: skips them, holds them back, or queues them.

*Source*: docs/protocols D7, I11 (the decision is in `drivers.groups.read_elsewhere`).

*Invariants*: no record of a partition is handed out after `drop`; a position never passes a record
that was not taken.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stilltide.connectors.ports.readers import Committed, FetchedRecord, Record, records_of
from stilltide.pipeline.core.read_committed.machine import Deliver, Reason, Statistics, Withheld
from stilltide.pipeline.drivers.groups.read_elsewhere import (
    NOT_READ_ELSEWHERE,
    GroupSignals,
    ReadElsewhere,
    tagged,
)
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

TURN_RECORDS = 256
"""Records taken from one partition's queue before the next partition's turn."""

AHEAD_RECORDS = 100
"""Visible records buffered while the application keeps up: few, so that they are still in the
processor's cache, and young to the garbage collector, when they are taken."""

_NOTHING: deque[Record] = deque(maxlen=0)

_log = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Assigned:
    """One partition from its assignment to its revocation.

    Attributes:
        data: the partition.
        end: the position once all records are taken.
        queued_end: end offset of the last record that was ever queued; 0: none was.
        committed: the group's commit, as of the assignment.
        elsewhere: what the group has read on other clusters; None: not known yet.
        queue: records that the application may take from the left, in offset order; they are made
            of the last ones of `turn`.
        turn: the records of which `queue` was filled, also those that were taken since.
        fetched: records that come after those of `queue`.
        held_back: records that wait until `elsewhere` is known.
        skipped: records that the group has read elsewhere.
        undecodable: records that the application was not given, since they cannot be decoded.
        reported: reasons for which a record was logged that the application was not given.
    """

    data: TopicPartition
    end: EndOffset
    committed: Committed | None
    elsewhere: ReadElsewhere | None
    queued_end: int = 0
    queue: deque[Record] = field(default_factory=deque[Record])
    turn: Sequence[FetchedRecord] = ()
    fetched: deque[FetchedRecord] = field(default_factory=deque[FetchedRecord])
    held_back: list[Deliver[FetchedRecord]] = field(default_factory=list[Deliver[FetchedRecord]])
    skipped: int = 0
    undecodable: int = 0
    reported: set[Reason | None] = field(default_factory=set[Reason | None])

    @property
    def position(self) -> EndOffset:
        """The end offset of what was taken or is withheld for good."""
        if self.queue:
            return EndOffset(self.queue[0].offset)
        return EndOffset(self.fetched[0].offset()) if self.fetched else self.end

    @property
    def count(self) -> int:
        """The number of records that the application may take."""
        return len(self.queue) + len(self.fetched)

    def put(self, batch: Deliver[FetchedRecord]) -> bool:
        """Queues what the group has not read anywhere; holds records back until that is known.

        Returns whether the position has moved by records alone that the application never gets.
        """
        if self.elsewhere is None:
            self.held_back.append(batch)
            return False
        records = self.elsewhere.unread(batch.payloads)
        self.skipped += len(batch.payloads) - len(records)
        self.fetched.extend(records)
        self.end = batch.position
        if records:
            self.queued_end = records[-1].offset() + 1
        return not records

    def filled(self, records_max: int, *, timestamps: bool) -> deque[Record]:
        """The queue, with the next records if it was empty; `TimedRecord` with `timestamps`."""
        if not self.queue and self.fetched:
            self.turn = _taken(self.fetched, records_max)
            self.queue.extend(records_of(self.data, self.turn, timestamps=timestamps))
        return self.queue

    def take(self, records_max: int) -> list[FetchedRecord]:
        """Takes the next records, also those of the queue."""
        if self.queue:
            self.fetched.extendleft(reversed(self.turn[-len(self.queue) :]))
            self.queue.clear()
        return _taken(self.fetched, records_max)

    def clear(self) -> None:
        """Forgets all records, also of a queue that was handed out."""
        self.queue.clear()
        self.fetched.clear()


def _taken(fetched: deque[FetchedRecord], records_max: int) -> list[FetchedRecord]:
    if len(fetched) > records_max:
        return [fetched.popleft() for _ in range(records_max)]
    records = list(fetched)
    fetched.clear()
    return records


Opened = Mapping[TopicPartition, Assigned]


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
    """Records that the application may take, by partition; the caller keeps `count` in its limit.

    The application empties a queue from the left, which costs less than a call for each record.

    Args:
        changes: wakes the application's call when there are more records to take.
        timestamps: whether the records of queues are `TimedRecord`.

    Attributes:
        replicated: whether groups may have read records on other clusters (I11).
        turn_records: largest number of records in a queue.
        ahead_records: visible records that are buffered while the application keeps up.
        moved: whether a position has moved by records alone that the application never gets; the
            caller takes it back.
    """

    def __init__(self, changes: Changes, *, timestamps: bool = False) -> None:
        self.changes = changes
        self.replicated = self.moved = False
        self.turn_records = TURN_RECORDS
        self.ahead_records = AHEAD_RECORDS
        self._timestamps = timestamps
        self._partitions: dict[TopicPartition, Assigned] = {}
        self._turns: deque[Assigned] = deque()

    def open(
        self,
        positions: Mapping[TopicPartition, Offset],
        committed: Mapping[TopicPartition, Committed | None],
    ) -> Opened:
        """Begins these partitions; returns those for which `learned` has to be called.

        Args:
            positions: positions at which reading begins.
            committed: the group's commits for the same partitions.
        """
        elsewhere = None if self.replicated else NOT_READ_ELSEWHERE
        opened = {
            data: Assigned(data, EndOffset(position), committed[data], elsewhere)
            for data, position in positions.items()
        }
        self._partitions |= opened
        self._turns.extend(opened.values())
        return opened if self.replicated else {}

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records, also of a queue that was handed out."""
        partition = self._partitions.pop(data)
        partition.clear()
        self._turns.remove(partition)

    def learned(
        self,
        opened: Opened,
        signals: Mapping[TopicPartition, GroupSignals],
        topic_ids: Mapping[str, bytes],
    ) -> None:
        """Takes what the group has read elsewhere; passes on what was held back till now (I11).

        Raises:
            DecodeError: the metadata of the group's commit cannot be decoded.
        """
        for data, partition in opened.items():
            topic_id = topic_ids.get(data.topic)
            if topic_id is None or self._partitions.get(data) is not partition:
                continue  # the topic is gone, and the partition will be revoked; or it was
            partition.elsewhere = signals[data].for_member(partition.committed, topic_id)
            for batch in partition.held_back:
                self.moved |= partition.put(batch)
            partition.held_back.clear()

    def delivered(self, data: TopicPartition, batch: Deliver[FetchedRecord]) -> None:
        """Takes visible records of a partition, in offset order."""
        self.moved |= self._partitions[data].put(batch)
        self.changes.wake()

    def withheld(self, data: TopicPartition, withheld: Withheld) -> None:
        """Logs the first record withheld from a partition for each reason; statistics count all."""
        reported = self._partitions[data].reported
        if withheld.reason in reported:
            return
        reported.add(withheld.reason)
        _log.warning(
            "a record is withheld; more like it of this partition are counted, not logged",
            topic=data.topic,
            partition=data.partition,
            offset=withheld.offset,
            reason=withheld.reason.value,
            txn=str(withheld.txn) if withheld.txn else None,
        )

    def undecodable(self, data: TopicPartition, error: StilltideError) -> None:
        """Counts a record that was passed over; logs the first one of the partition."""
        partition = self._partitions[data]
        partition.undecodable += 1
        if None in partition.reported:
            return
        partition.reported.add(None)
        _log.warning(
            "a record cannot be decoded; more like it of this partition are counted, not logged",
            topic=data.topic,
            partition=data.partition,
            offset=error.offset,
            why=error.primary,
            detail=error.detail,
        )

    @property
    def holding(self) -> set[TopicPartition]:
        """The partitions with records that are held back."""
        return {data for data, it in self._partitions.items() if it.held_back}

    @property
    def count(self) -> int:
        """The number of records that were not taken yet."""
        return sum(it.count for it in self._partitions.values())

    def counts(self) -> dict[TopicPartition, int]:
        """The number of records of each partition that were not taken yet."""
        return {data: partition.count for data, partition in self._partitions.items()}

    def count_of(self, data: TopicPartition) -> int:
        """The number of records of a partition that were not taken yet; 0: not open."""
        partition = self._partitions.get(data)
        return 0 if partition is None else partition.count

    def next_queue(self) -> deque[Record]:
        """The records of the partition whose turn it is; empty if no partition has records."""
        partition = self._next(1)
        return _NOTHING if partition is None else self._filled(partition)

    def take(
        self, records_max: int, records_min: int = 1
    ) -> tuple[TopicPartition, list[FetchedRecord]] | None:
        """Takes records of the next partition that has `records_min`; None: no partition has."""
        partition = self._next(records_min)
        return None if partition is None else (partition.data, partition.take(records_max))

    def _filled(self, partition: Assigned) -> deque[Record]:
        return partition.filled(self.turn_records, timestamps=self._timestamps)

    def _next(self, records_min: int) -> Assigned | None:
        """The partition whose turn it is, of those with so many records."""
        for _ in range(len(self._turns)):
            partition = self._turns[0]
            self._turns.rotate(-1)
            if partition.count >= records_min:
                return partition
        return None

    def queue(self, data: TopicPartition) -> deque[Record]:
        """The records of one partition; empty when the partition is not open."""
        partition = self._partitions.get(data)
        return _NOTHING if partition is None else self._filled(partition)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of what was taken or is withheld for good; None: not open."""
        partition = self._partitions.get(data)
        return None if partition is None else partition.position

    @property
    def assigned(self) -> Mapping[TopicPartition, Assigned]:
        """Every open partition."""
        return self._partitions

    def metadata(
        self, cursors: Iterable[TopicPartition], metadata: Mapping[TopicPartition, str]
    ) -> Mapping[TopicPartition, str]:
        """Metadata of a commit, with the group's generation where the group is replicated."""
        if not self.replicated:
            return metadata
        tagged_metadata = dict(metadata)
        for data in cursors:
            partition = self._partitions.get(data)
            elsewhere = partition.elsewhere if partition else None
            if elsewhere is not None and elsewhere.generation is not None:
                tagged_metadata[data] = tagged(metadata.get(data, ""), elsewhere.generation)
        return tagged_metadata

    def statistics(self, data: TopicPartition, read: Statistics) -> Statistics:
        """The counts of an open partition; `delivered` counts what the application has taken."""
        partition = self._partitions[data]
        waiting = partition.count + sum(len(it.payloads) for it in partition.held_back)
        skipped, undecodable = partition.skipped, partition.undecodable
        return replace(
            read,
            delivered=read.delivered - waiting - skipped - undecodable,
            skipped=skipped,
            undecodable=undecodable,
            position=partition.position,
        )
