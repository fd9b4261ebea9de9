"""The network between simulated processes and the memory broker of each cluster.

*Source*: connectors.ports. What Kafka promises holds: order in a partition, a record that was
reported stays. Everything else may happen: requests and answers take time, a path is slow, cut, or
lets only one direction through, so that a request is carried out and its answer is lost.

*Invariants*: what a process has sent arrives also after its death, or never; nothing is repeated.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.memory.reader import MemoryGroupReader
from stilltide.connectors.memory.writer import RECORD_BYTES_MAX, MemoryWriter
from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S
from stilltide.connectors.ports.copying import COPY_TIMEOUT_S
from stilltide.connectors.ports.fetching import Fetching
from stilltide.connectors.ports.readers import NO_METADATA, Committed
from stilltide.connectors.ports.records import EndReached, Run
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.processes import EVERYWHERE, Process, ProcessChance, ProcessClock

REQUEST_S = 5.0
"""Time after which a request without an answer has failed."""

DELIVERY_S = 8.0
"""Time after which a record without a report is reported as unknown."""

AWAY_S = 3.0
"""Time after which a reader says that its broker is away."""

SESSION_S = 6.0
"""Time after which a silent member is removed from its group."""

HEARTBEAT_S = 1.0


class Path:
    """The connections of one process to one cluster.

    Args:
        process: the process.
        cluster: name of the cluster.
        seed: seed of the latencies and of the chance of the process.

    Attributes:
        clock, chance: time and chance of the process.
        to_open: whether requests arrive.
        from_open: whether answers arrive.
        slow_s: further latency of each direction.
    """

    def __init__(self, process: Process, cluster: str, seed: int) -> None:
        self.process = process
        self.clock = ProcessClock(process)
        self.chance = ProcessChance(process, seed)
        self.cluster = cluster
        self.slow_s = 0.0
        self.to_open = True
        self.from_open = True
        self._latency = random.Random(f"latency of {process.name} {seed}")
        self._moved = asyncio.Event()
        self._told_s = 0.0

    def change(self, *, to_open: bool, from_open: bool, slow_s: float = 0.0) -> None:
        """Sets what the path lets through."""
        self.to_open, self.from_open, self.slow_s = to_open, from_open, slow_s
        self._moved.set()
        self._moved = asyncio.Event()

    def lag_s(self) -> float:
        """The latency of one direction, drawn anew."""
        chance = self._latency.random()
        return self.slow_s + (0.0001 + chance * 0.002 if chance < 0.98 else (chance - 0.98) * 10)

    async def to(self) -> None:
        """Returns when a request that is sent now arrives."""
        await asyncio.sleep(self.lag_s())
        while not self.to_open:
            await self._moved.wait()

    async def back(self) -> None:
        """Returns when an answer that is sent now arrives."""
        await asyncio.sleep(self.lag_s())
        while not self.from_open:
            await self._moved.wait()

    async def back_in_time(self) -> None:
        """As `back`, for a reader.

        Raises:
            RetriableError: nothing has arrived for `AWAY_S`.
        """
        try:
            async with asyncio.timeout(AWAY_S):
                await self.back()
        except TimeoutError:
            raise RetriableError(f"cluster {self.cluster} is away") from None

    async def call(self, work: Callable[[], Any], name: str) -> Any:
        """Has the broker carry out a request, and returns its answer; `work` may be awaitable.

        Raises:
            RetriableError: no answer; the request may have been carried out.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        task = loop.create_task(self._carry(work, answer), context=EVERYWHERE)
        try:
            async with asyncio.timeout(REQUEST_S):
                return await answer
        except TimeoutError:
            raise RetriableError(f"no answer of cluster {self.cluster} to {name}") from None
        finally:
            del task

    def tell(self, call: Callable[..., None], *args: Any) -> None:
        """Calls the process after a latency; calls arrive in order."""
        loop = asyncio.get_running_loop()
        self._told_s = max(self._told_s + 1e-6, loop.time() + self.lag_s())
        loop.call_at(self._told_s, call, *args, context=self.process.context)

    async def _carry(self, work: Callable[[], Any], answer: "asyncio.Future[Any]") -> None:
        await self.to()
        if answer.done():
            return  # the caller gave the request up before the request had arrived
        try:
            result, error = work(), None
            if asyncio.iscoroutine(result):
                result = await result
        except ConnectorError as failure:
            result, error = None, failure
        await self.back()
        if answer.done() or self.process.is_dead:
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)


class _Remote:
    """An admin or a transactional writer whose calls travel."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner = inner
        self._path = path

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._path.call(lambda: method(*args, **kwargs), name)

        return call

    async def close(self) -> None:
        await self._inner.close()


class _RemoteCopyWriter(_Remote):
    """A copy writer: the broker aborts what a dead process has left open."""

    def __init__(self, inner: Any, path: Path, broker: MemoryBroker, transactional_id: str) -> None:
        super().__init__(inner, path)
        self._broker = broker
        self._id = transactional_id
        path.process.on_death.append(self._died)

    def _died(self) -> None:
        loop = asyncio.get_running_loop()
        epoch = self._broker.transactions.epoch_of(self._id)
        loop.call_later(COPY_TIMEOUT_S, self._abort, epoch, context=EVERYWHERE)

    def _abort(self, epoch: int) -> None:
        if self._broker.transactions.epoch_of(self._id) == epoch:
            self._broker.transactions.end_open(self._id, committed=False)


class _Letter(NamedTuple):
    data: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: NewHeaders | None
    delivered: Delivered
    deadline_s: float


class NetworkWriter:
    """A `LogWriter` whose records travel in batches, in the order of `append`."""

    def __init__(self, inner: MemoryWriter, path: Path, records_max: int) -> None:
        self._inner = inner
        self._path = path
        self._records_max = records_max
        self._letters: deque[_Letter] = deque()
        self._open: dict[int, _Letter] = {}  # without a report, in order
        self._number = 0
        self._closed = False
        self._moved = asyncio.Event()
        self._carrying = False

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> None:
        """Queues one record; see `LogWriter.append`."""
        if self._closed:
            raise FatalError("the writer is closed")
        if len(key or b"") + len(value or b"") > RECORD_BYTES_MAX:
            raise FatalError("a record is too large")
        if len(self._open) >= self._records_max:
            raise RetriableError("the queue of the writer is full", hint="wait for room")
        loop = asyncio.get_running_loop()
        letter = _Letter(
            data, value, key, headers and list(headers), delivered, loop.time() + DELIVERY_S
        )
        self._number += 1
        self._open[self._number] = letter
        self._letters.append(letter)
        loop.call_later(DELIVERY_S, self._late, self._number, context=self._path.process.context)
        if not self._carrying:
            self._carrying = True
            loop.create_task(self._carry(), context=EVERYWHERE)

    async def room(self) -> None:
        """Returns when the queue has room."""
        while len(self._open) >= self._records_max and not self._closed:
            await self._moving()

    def hurry(self) -> None:
        """Does nothing: the writer never lingers."""

    async def flush(self, timeout_s: float) -> bool:
        """Waits for all reports; False if time is up before."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:
                    await self._moving()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left."""
        if self._closed:
            return
        self._closed = True
        await self.flush(timeout_s)
        for number in list(self._open):
            self._report(number, RetriableError("the writer was closed"), -1)

    async def _moving(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _carry(self) -> None:
        """Carries batches to the broker, one after the other."""
        loop = asyncio.get_running_loop()
        numbers = {id(letter): number for number, letter in self._open.items()}
        while self._letters:
            await self._path.to()
            batch, self._letters = self._letters, deque()
            numbers = {id(letter): number for number, letter in self._open.items()}
            for letter in batch:
                number = numbers.get(id(letter))
                if number is None or letter.deadline_s <= loop.time():
                    continue  # reported as late, and never written
                self._inner.append(
                    letter.data,
                    letter.value,
                    self._answering(number),
                    key=letter.key,
                    headers=letter.headers,
                )
        self._carrying = False

    def _answering(self, number: int) -> Delivered:
        def delivered(error: ConnectorError | None, offset: int) -> None:
            asyncio.get_running_loop().create_task(
                self._answer(number, error, offset), context=EVERYWHERE
            )

        return delivered

    async def _answer(self, number: int, error: ConnectorError | None, offset: int) -> None:
        while not self._path.from_open:
            await self._path.back()
        self._path.tell(self._report, number, error, offset)

    def _late(self, number: int) -> None:
        self._report(number, RetriableError("no report in time"), -1)

    def _report(self, number: int, error: ConnectorError | None, offset: int) -> None:
        letter = self._open.pop(number, None)
        if letter is not None:
            self._moved.set()
            letter.delivered(error, offset)


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
        asyncio.get_running_loop().create_task(self._inner.close(), context=EVERYWHERE)

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
        loop = asyncio.get_running_loop()
        loop.create_task(self._leave(0.0), context=EVERYWHERE)

    async def _leave(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
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


class NetworkConnector:
    """The connector of one process to one cluster: that of the memory broker, at a distance.

    Args:
        broker: the cluster.
        path: the connections of the process.
        writer_records_max: records of a writer without a report at which it refuses more.
    """

    def __init__(self, broker: MemoryBroker, path: Path, *, writer_records_max: int = 10_000):
        self._broker = broker
        self._path = path
        self.clock, self.chance = path.clock, path.chance
        self._inner = MemoryConnector(
            broker, writer_records_max=1_000_000, clock=path.clock, chance=path.chance
        )
        self._writer_records_max = writer_records_max

    def own_id(self, name: str) -> str:
        """The name of a group, or a transactional id, of Stilltide's own."""
        return self._inner.own_id(name)

    def writer(self, client_id: str, *, linger_ms: float = 0) -> NetworkWriter:
        """A writer."""
        del linger_ms
        return NetworkWriter(self._inner.writer(client_id), self._path, self._writer_records_max)

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> NetworkReader:
        """A reader of named partitions."""
        del fetching
        inner = self._inner.reader(client_id, committed=committed, timestamps=timestamps)
        return NetworkReader(inner, self._path)

    def column_reader(self, client_id: str) -> NetworkReader:
        """A reader of columns."""
        return NetworkReader(self._inner.column_reader(client_id), self._path)

    def group_reader(
        self,
        client_id: str,
        group: str,
        *,
        from_start: bool = True,
        since_ms: int | None = None,
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> NetworkGroupReader:
        """A group's reader."""
        inner = self._inner.group_reader(
            client_id,
            group,
            from_start=from_start,
            since_ms=since_ms,
            metadata_max_age_s=metadata_max_age_s,
        )
        return NetworkGroupReader(inner, self._path, self._broker, group)

    def transactional_writer(self, transactional_id: str) -> Any:
        """A writer of sets of records."""
        return _Remote(self._inner.transactional_writer(transactional_id), self._path)

    def copy_writer(self, transactional_id: str) -> Any:
        """A writer of large native transactions."""
        inner = self._inner.copy_writer(transactional_id)
        return _RemoteCopyWriter(inner, self._path, self._broker, transactional_id)

    def native_transactions(self, client_id: str) -> None:
        """None: the memory broker ends a transaction on all its partitions at once."""
        del client_id

    def admin(self) -> Any:
        """An admin."""
        return _Remote(self._inner.admin(), self._path)

    def topic_admin(self) -> Any:
        """An admin of replicas and configs."""
        return _Remote(self._inner.topic_admin(), self._path)

    def group_admin(self) -> Any:
        """An admin of consumer groups."""
        return _Remote(self._inner.group_admin(), self._path)
