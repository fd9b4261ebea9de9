"""Readers whose records travel from a broker to a simulated process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.copying import columns_of
from stilltide.connectors.memory.reader import MemoryGroupReader, MemoryReader, runs
from stilltide.connectors.ports.readers import NO_METADATA, Committed, EndReached, Run
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.network.paths import Path
from tests.simulation.processes.process import EVERYWHERE

SESSION_S = 6.0
"""Time after which a silent member is removed from its group."""

HEARTBEAT_S = 1.0


class _Fetches:
    """Fetches for one reader, one at a time: records that are on their way, or have arrived.

    Nothing is fetched ahead of a read. What a fetch returns is what the log had when the broker
    answered: the process gets to know of it later.

    Args:
        inner: the reader at the broker.
        path: the way to the process.

    Attributes:
        stamp: the state of the assignment at the broker.
        arrived: records that have arrived, with the stamp under which they were fetched.
        closed: whether the reader is closed.
    """

    def __init__(self, inner: MemoryReader, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._flights = 0
        self._under_way = 0  # the flight of the fetch that is on its way
        self._waiter: asyncio.Future[None] | None = None
        self.stamp: tuple[int, int] = (0, 0)
        self.arrived: tuple[tuple[int, int], Sequence[Any]] | None = None
        self.closed = False
        inner.follow(self._changed)

    def forget(self) -> None:
        """Drops what is on its way or has arrived: the assignment is another."""
        self._under_way, self.arrived = 0, None

    async def take(self) -> tuple[tuple[int, int], Sequence[Any]]:
        """The records that have arrived, and their stamp; waits for them.

        Raises:
            ConnectorError: as `LogReader.read`.
        """
        while True:
            if self.closed:
                raise FatalError("the reader is closed")
            if self.arrived is None:
                if self._inner.is_stale and not self._under_way:
                    self._fetch()
                self._waiter = self._path.loop.create_future()
                try:
                    await self._waiter
                finally:
                    self._waiter = None
            elif self._path.from_open:
                arrived, self.arrived = self.arrived, None
                return arrived
            else:
                await self._path.open_in_time()

    @property
    def busy(self) -> bool:
        """Whether records are on their way or have arrived."""
        return bool(self._under_way or self.arrived)

    def _changed(self) -> None:
        """Fetches if a read waits for records."""
        if self._waiter is None or self._under_way or self.arrived or self._waiter.done():
            return
        try:
            self._fetch()
        except ConnectorError as error:
            self._waiter.set_exception(error)

    def _fetch(self) -> None:
        if items := self._inner.fetch():
            self._flights += 1
            self._under_way = self._flights
            self._path.deliver(self._land, self._flights, (self.stamp, items))

    def _land(self, flight: int, arrived: tuple[tuple[int, int], Sequence[Any]]) -> None:
        if flight == self._under_way:
            self._under_way, self.arrived = 0, arrived
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def wake(self) -> None:
        """Has `take` look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class NetworkReader:
    """A `LogReader` whose records travel."""

    def __init__(self, inner: MemoryReader, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._fetches = _Fetches(inner, path)
        self._topics: set[str] = set()
        path.process.on_death.append(self._died)

    def _died(self) -> None:
        self._path.carry(self._inner.close())

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment."""
        self._fetches.forget()
        self._topics = {data.topic for data in positions}
        await self._inner.assign(positions)

    async def read(self) -> Sequence[Any]:
        """The next records; see `LogReader.read`."""
        while True:
            stamp, items = await self._fetches.take()
            if not self._path.blind & self._topics:
                return items
            self._fetches.arrived = stamp, items
            await self._path.seen(self._topics)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions."""
        self._inner.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again."""
        self._inner.resume(partitions)

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`."""
        self._fetches.closed = True
        self._fetches.wake()
        await self._inner.close()


class NetworkColumnReader(NetworkReader):
    """A column reader whose records travel."""

    async def read(self) -> Sequence[Any]:
        """The next records, column by column; see `ColumnReader.read`."""
        return columns_of(await super().read())


class NetworkGroupReader:
    """A `GroupReader`: rebalances are told with latency, and a silent member is removed.

    A member that has not been told yet of a rebalance works on, although its partitions have
    another owner: its commits are fenced by the broker.
    """

    def __init__(
        self, inner: MemoryGroupReader, path: Path, broker: MemoryBroker, group: str
    ) -> None:
        self._inner = inner
        self._path = path
        self._broker = broker
        self._name = group
        self._told = 0
        self._committed: dict[TopicPartition, Committed] = {}
        self._member_id = ""
        self._fetches = _Fetches(inner.reader, path)
        self._moved = asyncio.Event()
        self._closed = False
        self._silent_s = 0.0
        self._is_member = False
        self._watching: asyncio.Task[None] | None = None
        self._assigned: Callable[[Mapping[TopicPartition, Offset]], None]
        self._revoked: Callable[[Sequence[TopicPartition]], None]

    @property
    def _server(self) -> int:
        """How often the broker has changed the assignment of this member."""
        return self._fetches.stamp[0]

    async def subscribe(
        self,
        topics: Sequence[str],
        *,
        assigned: Callable[[Mapping[TopicPartition, Offset]], None],
        revoked: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        """Joins the group."""
        self._assigned, self._revoked = assigned, revoked

        def join() -> Any:
            self._is_member = True
            self._watching = asyncio.get_running_loop().create_task(
                self._watch(), context=EVERYWHERE
            )
            return self._inner.subscribe(
                topics, assigned=self._was_assigned, revoked=self._was_revoked
            )

        await self._path.call(join, "a join of a group")

    async def change_topics(self, topics: Sequence[str]) -> None:
        """Subscribes to other topics."""
        self._fetches.stamp = self._server, self._fetches.stamp[1] + 1
        await self._path.call(lambda: self._inner.change_topics(topics), "another subscription")

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Moves to other positions, which a rebalance that nobody was told of yet replaces."""
        self._fetches.stamp = self._server, self._fetches.stamp[1] + 1
        if self._told == self._server:
            await self._inner.assign(positions)

    async def read(self) -> Sequence[Run | EndReached]:
        """The next records; see `GroupReader.read`."""
        while True:
            stamp, items = await self._fetches.take()
            server, _ = stamp
            try:
                while self._told < server and not self._closed:
                    self._moved.clear()
                    await self._moved.wait()
            except asyncio.CancelledError:
                self._fetches.arrived = stamp, items
                raise
            if self._closed:
                raise FatalError("the reader is closed")
            if (self._told, self._fetches.stamp[1]) == stamp:
                return runs(items)

    def read_now(self) -> Sequence[Run | EndReached]:
        """Records at hand; see `GroupReader.read_now`."""
        if self._fetches.busy or self._told != self._server or not self._path.from_open:
            return ()
        return self._inner.read_now()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions, unless a rebalance that nobody was told of yet has replaced them."""
        if self._told == self._server:
            self._inner.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again."""
        self._inner.resume(partitions)

    @property
    def member_id(self) -> str:
        """The id of this member as of the last assignment that it was told."""
        return self._member_id

    def committed(self, data: TopicPartition) -> Committed | None:
        """The group's commit as of the assignment."""
        return self._committed.get(data)

    async def commit(
        self,
        positions: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits offsets with metadata, unless the group was rebalanced since the member asked."""
        told = self._told

        def work() -> Any:
            if told != self._server:
                raise FencedError(f"group {self._name} has another generation")
            return self._inner.commit(positions, metadata)

        await self._path.call(work, "a commit")

    async def close(self) -> None:
        """Leaves the group."""
        if self._closed:
            return
        self._closed = self._fetches.closed = True
        self._moved.set()
        self._fetches.wake()
        self._path.to(lambda: self._path.carry(self._leave()))

    async def _leave(self) -> None:
        self._is_member = False
        if self._watching is not None:
            self._watching.cancel()
        await self._inner.close()

    async def _watch(self) -> None:
        """Removes the member from its group while nothing is heard of the process."""
        process, group = self._path.process, self._broker.group(self._name)
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if process.runs and self._path.to_open and self._path.from_open:
                self._silent_s = 0.0
                if not self._is_member:
                    self._is_member = True
                    self._inner.join_again()
                continue
            self._silent_s += HEARTBEAT_S
            if self._silent_s < SESSION_S:
                continue
            if process.is_dead:
                await self._inner.close()
                return
            if self._is_member and group.leave(self._inner):
                self._is_member = False
                self._inner.take_back()
                group.rebalance(self._broker.partitions)

    def _was_assigned(self, positions: Mapping[TopicPartition, Offset]) -> None:
        self._fetches.stamp = self._server + 1, self._fetches.stamp[1]
        pairs = {data: self._inner.committed(data) for data in positions}
        committed = {data: commit for data, commit in pairs.items() if commit is not None}
        told = (dict(positions), committed, self._inner.member_id, self._path.loop.time())
        self._path.tell(self._tell_assigned, self._server, *told)

    def _was_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._fetches.stamp = self._server + 1, self._fetches.stamp[1]
        self._path.tell(self._tell_revoked, self._server, list(partitions))

    def _tell_assigned(
        self,
        number: int,
        positions: Mapping[TopicPartition, Offset],
        committed: dict[TopicPartition, Committed],
        member_id: str,
        assigned_s: float,
    ) -> None:
        if not self._closed:
            self._told, self._committed, self._member_id = number, committed, member_id
            self._path.assigned_s = assigned_s
            self._assigned(positions)
            self._moved.set()

    def _tell_revoked(self, number: int, partitions: Sequence[TopicPartition]) -> None:
        if not self._closed:
            self._told, self._committed = number, {}
            self._revoked(partitions)
            self._moved.set()
