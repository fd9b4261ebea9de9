"""Readers whose records travel from a broker to a simulated process."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.reader import MemoryGroupReader
from stilltide.connectors.ports.readers import NO_METADATA, Committed
from stilltide.connectors.ports.records import EndReached, Run
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.network.paths import Path
from tests.simulation.processes.process import EVERYWHERE

SESSION_S = 6.0
"""Time after which a silent member is removed from its group."""

HEARTBEAT_S = 1.0


class NetworkReader:
    """A `LogReader` or a column reader whose records travel."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._generation = 0
        self._kept: Sequence[Any] = ()
        self._closed = False
        path.process.on_death.append(self._died)

    def _died(self) -> None:
        self._path.carry(self._inner.close())

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment."""
        self._generation += 1
        self._kept = ()
        await self._inner.assign(positions)

    async def read(self) -> Sequence[Any]:
        """The next records; see `LogReader.read`."""
        while True:
            items = self._kept or await self._inner.read()
            self._kept, generation = items, self._generation
            if self._path.from_open:
                await asyncio.sleep(self._path.lag_s())
            else:
                await self._path.back_in_time()
            if self._closed:
                raise FatalError("the reader is closed")
            if generation == self._generation:
                self._kept = ()
                return items

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions."""
        self._inner.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again."""
        self._inner.resume(partitions)

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`."""
        self._closed = True
        await self._inner.close()


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
        self._server = 0
        self._fetch = 0
        self._committed: dict[TopicPartition, Committed] = {}
        self._member_id = ""
        self._kept: tuple[int, int, Sequence[Any]] = (0, 0, ())
        self._moved = asyncio.Event()
        self._closed = False
        self._silent_s = 0.0
        self._is_member = False
        self._watching: asyncio.Task[None] | None = None
        self._assigned: Callable[[Mapping[TopicPartition, Offset]], None]
        self._revoked: Callable[[Sequence[TopicPartition]], None]

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
        self._fetch += 1
        await self._path.call(lambda: self._inner.change_topics(topics), "another subscription")

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Moves to other positions."""
        self._fetch += 1
        await self._inner.assign(positions)

    async def read(self) -> Sequence[Run | EndReached]:
        """The next records; see `GroupReader.read`."""
        while True:
            server, fetch, items = self._kept
            if not items:
                items = await self._inner.read()
                server, fetch = self._server, self._fetch
                self._kept = server, fetch, items
            if self._path.from_open:
                await asyncio.sleep(self._path.lag_s())
            else:
                await self._path.back_in_time()
            while self._told < server and not self._closed:
                self._moved.clear()
                await self._moved.wait()
            if self._closed:
                raise FatalError("the reader is closed")
            self._kept = (0, 0, ())
            if (self._told, self._fetch) == (server, fetch):
                return items

    def read_now(self) -> Sequence[Run | EndReached]:
        """Records at hand; see `GroupReader.read_now`."""
        if self._kept[2] or self._told != self._server or not self._path.from_open:
            return ()
        return self._inner.read_now()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Pauses partitions."""
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
        """Commits offsets with metadata."""
        await self._path.call(lambda: self._inner.commit(positions, metadata), "a commit")

    async def close(self) -> None:
        """Leaves the group."""
        if self._closed:
            return
        self._closed = True
        self._moved.set()
        self._path.carry(self._leave())

    async def _leave(self) -> None:
        await self._path.to()
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
        self._server += 1
        pairs = {data: self._inner.committed(data) for data in positions}
        committed = {data: commit for data, commit in pairs.items() if commit is not None}
        self._path.tell(
            self._tell_assigned, self._server, dict(positions), committed, self._inner.member_id
        )

    def _was_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._server += 1
        self._path.tell(self._tell_revoked, self._server, list(partitions))

    def _tell_assigned(
        self,
        number: int,
        positions: Mapping[TopicPartition, Offset],
        committed: dict[TopicPartition, Committed],
        member_id: str,
    ) -> None:
        if not self._closed:
            self._told, self._committed, self._member_id = number, committed, member_id
            self._assigned(positions)
            self._moved.set()

    def _tell_revoked(self, number: int, partitions: Sequence[TopicPartition]) -> None:
        if not self._closed:
            self._told, self._committed = number, {}
            self._revoked(partitions)
            self._moved.set()
