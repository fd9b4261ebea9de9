"""Reads the partitions of one member of a group, while the buffer has room for visible records.

*Source*: docs/protocols D7, D9.

*Invariants*: fetching pauses for a partition that waits for an outcome, and for all partitions
while the buffer is full. A record that cannot be read ends the subscription once the application
has taken what is in front of it, and asks for more: so it can commit.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from stilltide.connectors.errors import (
    OffsetOutOfRangeError,
    RetriableError,
    UnreadableRecordError,
)
from stilltide.connectors.ports.readers import EndReached, FetchedRecord, GroupReader, Run
from stilltide.pipeline.core.read_committed.machine import Deliver, Withheld
from stilltide.pipeline.drivers.groups.read_elsewhere import read_group_signals
from stilltide.pipeline.drivers.read_committed.decided import DecidedPartitions
from stilltide.pipeline.drivers.read_committed.outcome_tails import OutcomeLogs
from stilltide.pipeline.drivers.shared.log_scan import Pauses
from stilltide.pipeline.drivers.subscription.deliveries import Changes, Deliveries, Opened
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import Offset, TopicPartition

_FETCHES_MAX = 20
"""Fetches in a row for an application that has taken all; then the loop's other tasks run."""
_PATIENCE_S = 0.1
"""Longest stop of reading while the buffer has no room; then it fills until fetching pauses."""


class Intake:
    """Reads in `run`; the caller adds assigned partitions, and drops revoked ones.

    Args:
        reader: the member of the group; `close` closes it.
        logs: where markers and snapshots are.
        options: options of the subscription.
        deliveries: takes the visible records.
        changes: wakes the application's call and keeps the failure.

    Attributes:
        reader: the member of the group.
        decided: decides the records of the assigned partitions.
        positions: the offset from which each partition is read next.
    """

    def __init__(
        self,
        reader: GroupReader,
        logs: OutcomeLogs,
        options: SubscriptionOptions,
        deliveries: Deliveries,
        changes: Changes,
    ) -> None:
        self.reader = reader
        waiting_max = options.undecided_records_max
        self.decided = DecidedPartitions[FetchedRecord](logs, self, waiting_max=waiting_max)
        self._group = options.group
        self._records_max = options.buffer_records_max
        self._deliveries = deliveries
        self._changes = changes
        self._pauses = Pauses(reader)
        self.positions: dict[TopicPartition, Offset] = {}
        self._withheld: Collection[TopicPartition] = ()
        self._focus: Collection[TopicPartition] | None = None
        self._full = False
        self._room = asyncio.Event()
        self._rests = False
        self._fetches = 0
        self._closed = False

    async def run(self) -> None:
        """Reads until cancelled, or until reading fails."""
        outages = self.decided.logs.outages
        while True:
            if self._deliveries.count >= self._deliveries.ahead_records:
                # A pause drops the records that the client has fetched ahead, so reading first
                # stops for a short time.
                self._room.clear()
                self._rests, self._fetches = True, 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE_S):
                        await self._room.wait()
                self._rests = False
            try:
                items = await outages.read(self.reader.read)
            except UnreadableRecordError as error:
                await self._stand_at(error)
            else:
                self._items_read(items)

    async def _stand_at(self, error: UnreadableRecordError) -> None:
        """Raises the error once all before it is taken; returns if reading goes on elsewhere."""
        assert error.topic is not None
        assert error.partition is not None
        data = TopicPartition(error.topic, error.partition)
        read_to = self.positions.get(data)
        self._changes.wake()
        while read_to is not None and self.positions.get(data) == read_to:
            await self._changes.wanted()
            if self._deliveries.position(data) == read_to:
                raise error

    async def close(self) -> None:
        """Leaves the group. Safe to call twice."""
        self._closed = True
        await self.reader.close()

    def fetch(self) -> bool:
        """Reads in place of `run`, which rests: that saves two turns of the event loop.

        True: there may be more to take now. Raises the failure of the subscription.
        """
        if not self._rests or self._fetches == _FETCHES_MAX or self._closed:
            return False
        self._fetches += 1
        try:
            self._items_read(self.reader.read_now())
        except (RetriableError, OffsetOutOfRangeError):
            return False  # `run` meets the error, too, and repeats the read or takes care of it
        except Exception as error:
            self._changes.fail(error)
            raise
        return True

    def look(self) -> None:
        """Raises the failure, if there is one; resumes reading when there is room."""
        self._changes.check()
        if not self._room.is_set() and self._deliveries.count < self._deliveries.ahead_records:
            self._room.set()
        if self._full and self._buffered_count() <= self._records_max // 2:
            self._full = False
            self._apply_pauses()

    def focus(self, partitions: Collection[TopicPartition] | None) -> None:
        """Fetches only these partitions, or all again: the caller takes no others now.

        Without this, records of the others would fill the buffer, and all fetching would pause.
        """
        self._focus = partitions
        if self._full and self._buffered_count() < self._records_max:
            self._full = False
        self._apply_pauses()

    def withhold(self, partitions: Collection[TopicPartition]) -> None:
        """Stops fetching exactly these partitions; buffered records stay."""
        self._withheld = partitions
        self._apply_pauses()

    def add(
        self, positions: Mapping[TopicPartition, Offset], topic_ids: Mapping[str, bytes]
    ) -> None:
        """Decides these partitions, from these positions on; see `DecidedPartitions.add`."""
        self.decided.add(positions, topic_ids)
        self.positions.update(positions)

    async def move(self) -> None:
        """Reads on from the positions of `add`, and from where other partitions have come to.

        Records that were fetched ahead are fetched again. Raises as `GroupReader.assign`.
        """
        await self.reader.assign(dict(self.positions))  # from the call on, no old record is read
        self._pauses.forget_all()
        self._apply_pauses()

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets these partitions."""
        self.decided.remove(partitions)
        for data in partitions:
            self.positions.pop(data, None)
        self._pauses.forget(partitions)

    async def learn(self, opened: Opened, topic_ids: Mapping[str, bytes]) -> None:
        """Finds out what the group has read elsewhere, then passes on records held back (I11).

        Raises:
            DecodeError: a signal, or the metadata of the group's commit, cannot be decoded.
            UnavailableError: the cluster stayed away.
        """
        logs = self.decided.logs
        signals = await logs.outages.call(
            read_group_signals, logs.connector, logs.admin, opened, self._group
        )
        self._deliveries.learned(opened, signals, topic_ids)
        self.evidence_read()

    def _items_read(self, items: Sequence[Run | EndReached]) -> None:
        decided = self.decided
        for item in items:
            if item.data not in self.positions:  # revoked
                continue
            if isinstance(item, EndReached):
                self.positions[item.data] = Offset(item.end_offset)
                decided.end_reached(item.data, item.end_offset)
            else:
                self.positions[item.data] = Offset(item.offsets[-1] + 1)
                decided.records_read(item.data, item.offsets, item.headers, item.fetched)
        self._apply_pauses()

    def _buffered_count(self) -> int:
        """The number of records that wait for the caller, who takes no others now."""
        if self._focus is None:
            return self._deliveries.count
        return sum(map(self._deliveries.count_of, self._focus))

    def delivered(self, data: TopicPartition, batch: Deliver[FetchedRecord]) -> None:
        """Passes visible records on."""
        self._deliveries.delivered(data, batch)

    def withheld(self, data: TopicPartition, withheld: Withheld) -> None:
        """Reports a record that is withheld."""
        self._deliveries.withheld(data, withheld)

    def undecodable(self, data: TopicPartition, error: StilltideError) -> None:
        """Reports a record that was passed over, since it cannot be decoded."""
        self._deliveries.undecodable(data, error)

    def undecided_changed(self) -> None:
        """Wakes the application's call, which may report a blocked partition."""
        self._changes.wake()

    def evidence_read(self) -> None:
        """Fetches again what was decided."""
        self._apply_pauses()
        self._changes.wake()

    def _apply_pauses(self) -> None:
        """Pauses the partitions that cannot deliver, and all of them while the buffer is full."""
        if self._closed:
            return
        if self._buffered_count() >= self._records_max:
            self._full = True
        decided = self.decided
        if self._full:
            wanted = decided.partitions
        else:
            wanted = decided.full | self._deliveries.holding
            if self._withheld:
                wanted |= decided.partitions & set(self._withheld)
            if self._focus is not None:
                wanted |= decided.partitions - set(self._focus)
        self._pauses.apply(wanted)
