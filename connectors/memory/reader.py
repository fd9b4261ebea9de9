"""Readers of the memory broker: one of named partitions, one of a group's partitions.

*Source*: connectors.ports, `LogReader` and `GroupReader`.

*Invariants*: no record is fetched ahead: a record is read from the log when `read` returns it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import cast

from stilltide.connectors.errors import FatalError, FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.readers import (
    NO_METADATA,
    Committed,
    EndReached,
    Record,
    Run,
    TimedRecord,
    WrappedRecord,
    check_metadata,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class MemoryReader:
    """A `LogReader`.

    Attributes:
        is_stale: whether `fetch` may return something.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
    ) -> None:
        self._broker = broker
        self._committed = committed
        self._client_id = client_id
        self._timestamps = timestamps
        self._positions: dict[TopicPartition, Offset] = {}
        self._ends_told: dict[TopicPartition, EndOffset] = {}
        self._paused: set[TopicPartition] = set()
        self._failure: FatalError | None = None
        self._closed = False
        self.is_stale = True
        self._changed = asyncio.Event()
        self._follower: Callable[[], None] = self._changed.set
        self._watch = broker.watchers.add(self.notify)

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment; no partition is paused afterwards."""
        self.check_open()
        self.move(positions)

    async def read(self) -> Sequence[Record | EndReached]:
        """The next records; see `LogReader.read`."""
        # Gives other tasks a turn, as a read from Kafka does, even if records are there.
        await asyncio.sleep(0)
        while True:
            self._changed.clear()
            if items := self.fetch():
                return items
            await self._changed.wait()

    def fetch(self) -> Sequence[Record | EndReached]:
        """What `read` would return now; empty if `read` would wait. Raises as `read`."""
        if not self.is_stale:
            return ()
        self.check_open()
        if self._failure is not None:
            raise self._failure
        return self._fetch()

    def follow(self, follower: Callable[[], None]) -> None:
        """Has `follower` called when `fetch` may return something; takes the place of `read`."""
        self._follower = follower

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions."""
        self._paused.update(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from their positions."""
        self._paused.difference_update(partitions)
        self.notify()

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._watch.end()
            self.notify()

    def read_now(self) -> Sequence[Record | EndReached]:
        """Records that can be read without waiting; see `GroupReader.read_now`."""
        if self._closed or self._failure is not None or self._broker.is_down:
            return ()
        return self._fetch()

    def check_open(self) -> None:
        """Raises `FatalError` if the reader is closed."""
        if self._closed:
            raise FatalError(f"reader {self._client_id} is closed")

    def move(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment by these positions."""
        self.place(positions)
        self.notify()

    def place(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """As `move`, but the caller has to call `notify` then."""
        self._positions = dict(positions)
        self._watch.follow(() if self._closed else self._positions)
        self._ends_told.clear()
        self._paused.clear()
        self._failure = None

    def fail(self, error: FatalError) -> None:
        """Makes every `read` raise `error` until the next `move`."""
        self._failure = error
        self.notify()

    def notify(self) -> None:
        """Has a waiting `read` look again."""
        self.is_stale = True
        self._follower()

    def _fetch(self) -> list[Record | EndReached]:
        self._broker.check_up()
        items: list[Record | EndReached] = []
        is_more = False
        for data, position in self._positions.items():
            if data in self._paused:
                continue
            log = self._broker.log_of(data)
            end = log.stable_end if self._committed and log.open else log.end
            if position == end and self._ends_told.get(data) == end:
                continue  # as most partitions are after most changes
            records, after = log.read(position, committed=self._committed)
            is_more |= after < end
            if self._timestamps:  # 0, because the broker has no clock
                records = [TimedRecord.at(record, 0) for record in records]
            items.extend(records)
            self._positions[data] = after
            if after == end and self._ends_told.get(data) != end:
                self._ends_told[data] = end
                items.append(EndReached(*data, end))
        self.is_stale = is_more
        return items


class MemoryGroupReader:
    """A `GroupReader`; subscribes once.

    Attributes:
        reader: the reader of the partitions that the group has given.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        client_id: str,
        group: str,
        *,
        from_start: bool,
        metadata_max_age_s: float,
    ) -> None:
        self._broker = broker
        self._age_s = metadata_max_age_s
        self._name = group
        self._group = broker.group(group)
        self._from_start = from_start
        self.reader = MemoryReader(broker, client_id, timestamps=True)
        self.client_id = client_id
        self._member_id = f"{client_id}-{next(broker.member_numbers)}"
        self._held: frozenset[TopicPartition] = frozenset()
        self._commits: dict[TopicPartition, Committed] = {}
        self._assigned: Callable[[Mapping[TopicPartition, Offset]], None]
        self._revoked: Callable[[Sequence[TopicPartition]], None]
        self._first: frozenset[TopicPartition] = frozenset()  # that were there in `subscribe`
        self._looking: asyncio.Task[None] | None = None
        self.topics: Sequence[str] = ()

    async def subscribe(
        self,
        topics: Sequence[str],
        *,
        assigned: Callable[[Mapping[TopicPartition, Offset]], None],
        revoked: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        """Joins the group; see `GroupReader.subscribe`."""
        self.reader.check_open()
        self.topics = tuple(topics)
        self._assigned, self._revoked = assigned, revoked
        self._group.join(self)
        self._first = frozenset(self._broker.partitions(topics))
        self._looking = asyncio.create_task(self._look())
        self._rebalance_soon()

    async def change_topics(self, topics: Sequence[str]) -> None:
        """Subscribes to other topics; see `GroupReader.change_topics`."""
        self.reader.check_open()
        self._first = frozenset(data for data in self._first if data.topic in topics)
        self.topics = tuple(topics)
        self.reader.move({})
        self._rebalance_soon()

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Moves to other positions in partitions that are assigned to this member.

        Raises:
            FencedError: a partition is not assigned to this member any more.
        """
        self._check_held(positions)
        await self.reader.assign(positions)

    async def read(self) -> Sequence[Run | EndReached]:
        """The next records; see `GroupReader.read`."""
        return runs(await self.reader.read())

    def read_now(self) -> Sequence[Run | EndReached]:
        """Records that can be read without waiting; see `GroupReader.read_now`."""
        return runs(self.reader.read_now())

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions."""
        self.reader.pause(self._held.intersection(partitions))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from their positions."""
        self.reader.resume(partitions)

    @property
    def member_id(self) -> str:
        """The id of this member; see `GroupReader.member_id`."""
        return self._member_id

    def committed(self, data: TopicPartition) -> Committed | None:
        """The group's commit as of the assignment; see `GroupReader.committed`."""
        return self._commits.get(data)

    async def commit(
        self,
        positions: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits offsets with metadata; see `GroupReader.commit`."""
        self.reader.check_open()
        self._check_held(positions)
        check_metadata(metadata)
        self._broker.check_up()
        for data in positions:
            self._broker.log_of(data)
        for data, offset in positions.items():
            self._group.committed[data] = Committed(offset, metadata.get(data, ""))

    async def close(self) -> None:
        """Leaves the group; a waiting `read` raises `FatalError`. Safe to call twice."""
        self._held = frozenset()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._group.leave(self):
            self._rebalance_soon()
        await self.reader.close()

    def take_back(self) -> None:
        """Revokes all partitions; called by the group."""
        revoked, self._held = self._held, frozenset()
        self._commits = {}
        self.reader.move({})
        if revoked:
            self._revoked(sorted(revoked))

    def give(self, partitions: Sequence[TopicPartition]) -> None:
        """Assigns these partitions; called by the group."""
        absent = set(self.topics) - {data.topic for data in self._broker.partitions(self.topics)}
        if absent:
            self.reader.fail(
                FatalError(f"topics {', '.join(sorted(absent))} do not exist", hint="create them")
            )
            return
        positions = {data: self._position(data) for data in partitions}
        self._held = frozenset(partitions)
        committed = self._group.committed
        self._commits = {data: committed[data] for data in partitions if data in committed}
        self.reader.place(positions)
        self._assigned(positions)
        self.reader.notify()

    def join_again(self) -> None:
        """Joins the group again, as another member, unless this reader was closed."""
        if self._looking is not None and not self._looking.done():
            self._member_id = f"{self.client_id}-{next(self._broker.member_numbers)}"
            self._group.join(self)
            self._rebalance_soon()

    def _position(self, data: TopicPartition) -> Offset:
        if data in self._group.committed:
            return self._group.committed[data].offset
        log = self._broker.log(data)
        assert log is not None
        begun = any(it.topic == data.topic for it in self._group.committed)
        is_added = begun or data not in self._first
        return log.start if self._from_start or is_added else Offset(log.end)

    async def _look(self) -> None:
        """Shares out partitions that the topics have gained, until cancelled."""
        while True:
            await asyncio.sleep(self._age_s)
            if set(self._broker.partitions(self.topics)) - self._group.shared:
                self._rebalance_soon()

    def _rebalance_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self._broker.when_up, self._rebalance)

    def _rebalance(self) -> None:
        self._group.rebalance(self._broker.partitions)

    def _check_held(self, partitions: Iterable[TopicPartition]) -> None:
        for data in partitions:
            if data not in self._held:
                raise FencedError(
                    f"group {self._name} has not given {data} to this member",
                    hint="stop using the partition; another member has it, or will get it",
                )


def runs(items: Sequence[Record | EndReached]) -> list[Run | EndReached]:
    """The items of a reader of partitions, as a reader of a group returns them."""
    split: list[Run | EndReached] = []
    for (kind, *place), run in groupby(items, attrgetter("__class__", "topic", "partition")):
        if kind is EndReached:
            split += cast("Iterable[EndReached]", run)
        else:
            records = cast("list[Record]", [*run])
            offsets, headers = [record.offset for record in records], [it.headers for it in records]
            fetched = [*map(WrappedRecord, records)]
            split.append(Run(TopicPartition(*place), offsets, headers, fetched))
    return split
