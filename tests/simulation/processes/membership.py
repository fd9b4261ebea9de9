"""A model of what Faust does for a worker: the group of the workers, assignments, agents.

*Source*: docs/protocols B; pipeline/agents. Only what Faust does is modelled: a worker's own agents
and owners run on a `ModelApp` as they run on a Faust App.

An assignment is late, reaches the workers at different moments, so that owners overlap or are
absent, and is sometimes wrong for a while. The model keeps equal partition numbers of topics
together, as Faust's assignor does.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.records import Record
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.processes.process import EVERYWHERE, PROCESS, Process

SESSION_S = 5.0
"""Time after which a silent worker loses its partitions."""

ERR_S = 4.0
"""How long a wrong assignment may last."""

COMMIT_S = 0.5
RETRY_S = 0.25


class _Message(NamedTuple):
    topic: str
    partition: int
    offset: int


class _Event(NamedTuple):
    message: _Message
    value: bytes | None


class _Stream:
    """What an agent iterates over: events of its topics."""

    def __init__(self, app: "ModelApp") -> None:
        self._app = app
        self.queue: asyncio.Queue[_Event] = asyncio.Queue()

    def noack(self) -> "_Stream":
        return self

    async def events(self) -> AsyncIterator[_Event]:
        while True:
            yield await self.queue.get()

    async def ack(self, event: _Event) -> None:
        self._app.acked(event.message)


class _Channel:
    """A channel without Kafka."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    async def put(self, item: Any) -> None:
        await self._queue.put(item)

    def __aiter__(self) -> "_Channel":
        return self

    async def __anext__(self) -> Any:
        return await self._queue.get()


class _Signal:
    def __init__(self) -> None:
        self._calls: list[Callable[..., Coroutine[Any, Any, None]]] = []

    def connect(self, call: Callable[..., Coroutine[Any, Any, None]], *, weak: bool) -> None:
        assert not weak
        self._calls.append(call)

    async def send(self, app: "ModelApp", partitions: set[TopicPartition]) -> None:
        for call in self._calls:
            await call(app, partitions)


class ModelApp:
    """What a worker uses of a Faust App: topics, agents, channels and signals of a rebalance."""

    def __init__(self) -> None:
        self.on_partitions_assigned = _Signal()
        self.on_partitions_revoked = _Signal()
        self._agents: list[tuple[Any, Callable[[Any], Coroutine[Any, Any, None]]]] = []
        self._streams: dict[str, _Stream] = {}
        self._member: Member | None = None

    def topic(self, *names: str, **_: Any) -> tuple[str, ...]:
        """The topics of an agent."""
        return names

    def channel(self) -> _Channel:
        """A channel in memory."""
        return _Channel()

    def agent(self, source: Any, **_: Any) -> Callable[[Any], Any]:
        """Registers an agent of topics, or of a channel."""

        def register(work: Callable[[Any], Coroutine[Any, Any, None]]) -> Any:
            self._agents.append((source, work))
            return work

        return register

    @property
    def topics(self) -> list[str]:
        """The topics that agents read."""
        return [name for source, _ in self._agents if isinstance(source, tuple) for name in source]

    async def run_agents(self) -> None:
        """Runs all agents until one of them fails."""
        async with asyncio.TaskGroup() as tasks:
            for source, work in self._agents:
                if isinstance(source, tuple):
                    stream = _Stream(self)
                    self._streams |= dict.fromkeys(source, stream)
                    tasks.create_task(work(stream))
                else:
                    tasks.create_task(work(source))

    async def run(self, connector: NetworkConnector, group: "WorkerGroup") -> None:
        """Joins the group, and reads what is assigned, until cancelled."""
        member = self._member = Member(self, connector, group)
        await member.run()

    def arrived(self, records: Sequence[Record]) -> None:
        """Passes records on to the agents of their topics."""
        for record in records:
            message = _Message(record.topic, record.partition, record.offset)
            self._streams[record.topic].queue.put_nowait(_Event(message, record.value))

    def clear(self) -> None:
        """Forgets what no agent has taken yet, as Faust does in a rebalance."""
        for stream in self._streams.values():
            while not stream.queue.empty():
                stream.queue.get_nowait()

    def acked(self, message: _Message) -> None:
        """An agent has taken an event."""
        assert self._member is not None
        self._member.acked(message)


class Member:
    """The membership of one worker: its orders from the group, and its consumer."""

    def __init__(self, app: ModelApp, connector: NetworkConnector, group: "WorkerGroup") -> None:
        self.app = app
        self._reader = connector.reader("workers", committed=False)
        self.group = group
        self._orders: asyncio.Queue[set[TopicPartition]] = asyncio.Queue()
        self._acked: dict[TopicPartition, int] = {}
        self._commit_due = False
        self._held: set[TopicPartition] = set()

    def order(self, partitions: set[TopicPartition]) -> None:
        """The group has assigned these partitions."""
        self._orders.put_nowait(partitions)

    def acked(self, message: _Message) -> None:
        """An agent has taken an event."""
        data = TopicPartition(message.topic, message.partition)
        if data in self._held:
            self._acked[data] = message.offset + 1
            if not self._commit_due:
                self._commit_due = True
                asyncio.get_running_loop().call_later(COMMIT_S, self._commit)

    async def run(self) -> None:
        """Follows the group's orders until cancelled."""
        self.group.join(self)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rebalance())
            tasks.create_task(self._read())

    async def _rebalance(self) -> None:
        while True:
            partitions = await self._orders.get()
            await self.app.on_partitions_revoked.send(self.app, set(self._held))
            self.group.commit(self, self._acked)
            self._held, self._acked = set(), {}
            await self._reader.assign({})
            self.app.clear()
            await asyncio.sleep(self.group.chance.expovariate(4))
            if not self._orders.empty():
                continue
            self._held = partitions
            ordered = sorted(partitions)
            positions = {data: Offset(self.group.committed.get(data, 0)) for data in ordered}
            await self.app.on_partitions_assigned.send(self.app, set(partitions))
            await self._reader.assign(positions)

    async def _read(self) -> None:
        while True:
            try:
                items = await self._reader.read()
            except ConnectorError:
                await asyncio.sleep(RETRY_S)
                continue
            self.app.arrived([it for it in items if isinstance(it, Record)])

    def _commit(self) -> None:
        self._commit_due = False
        self.group.commit(self, self._acked)


class WorkerGroup:
    """The group of the workers of one cluster, as its broker sees the group.

    Attributes:
        committed: the position of each partition of a topic of requests.
        wrong: whether the next assignment errs: a partition has two owners, or none.
    """

    def __init__(self, broker: MemoryBroker, chance: random.Random) -> None:
        self.chance = chance
        self.committed: dict[TopicPartition, int] = {}
        self.wrong = False
        self._broker = broker
        self._members: dict[Member, Process] = {}
        self._given: dict[Member, set[TopicPartition]] = {}
        self._silent_s: dict[Member, float] = {}
        self._generation = 0
        self._due = False

    def join(self, member: Member) -> None:
        """Adds a member; its process is the one that calls."""
        self._members[member] = PROCESS.get()
        self.rebalance_soon()

    def commit(self, member: Member, positions: dict[TopicPartition, int]) -> None:
        """Commits positions of partitions that the member has."""
        given = self._given.get(member, set())
        for data, offset in positions.items():
            if data in given:
                self.committed[data] = max(self.committed.get(data, 0), offset)

    def rebalance_soon(self, least_s: float = 0.05) -> None:
        """Assigns all partitions again, after a while."""
        if not self._due:
            self._due = True
            delay_s = least_s + self.chance.expovariate(2)
            asyncio.get_running_loop().call_later(delay_s, self._rebalance, context=EVERYWHERE)

    async def watch(self) -> None:
        """Removes silent members until cancelled, and rights wrong assignments."""
        while True:
            await asyncio.sleep(1)
            for member, process in list(self._members.items()):
                is_heard = process.runs and all(it.is_open for it in process.paths.values())
                silent_s = 0.0 if is_heard else self._silent_s.get(member, 0.0) + 1
                self._silent_s[member] = silent_s
                if silent_s > SESSION_S:
                    if process.is_dead:
                        del self._members[member]
                    if self._given.pop(member, None):
                        self.rebalance_soon()
                elif not silent_s and member not in self._given:
                    self.rebalance_soon()

    def _rebalance(self) -> None:
        self._due = False
        members = [it for it in self._members if self._silent_s.get(it, 0.0) <= SESSION_S]
        if not members:
            return
        shares: dict[Member, set[TopicPartition]] = {member: set() for member in members}
        first = self.chance.randrange(len(members))
        partitions = self._broker.partitions(members[0].app.topics)
        for data in partitions:
            shares[members[(first + data.partition) % len(members)]].add(data)
        if self.wrong:
            self._err(shares, partitions)
            self.rebalance_soon(self.chance.choice((0.05, ERR_S)))
        self._given = shares
        self._generation += 1
        for member, share in shares.items():
            delay_s = 0.01 + self.chance.expovariate(3)
            asyncio.get_running_loop().call_later(
                delay_s, self._order, member, share, self._generation, context=EVERYWHERE
            )

    def _err(
        self, shares: dict[Member, set[TopicPartition]], partitions: Sequence[TopicPartition]
    ) -> None:
        """Gives a partition number to two members, or to none."""
        self.wrong = False
        number = self.chance.choice(partitions).partition
        mistaken = {data for data in partitions if data.partition == number}
        twice = self.chance.random() < 0.5
        for share in shares.values():
            if twice:
                share.update(mistaken)
            else:
                share.difference_update(mistaken)

    def _order(self, member: Member, share: set[TopicPartition], generation: int) -> None:
        """Tells a member what it has, unless a later assignment was made meanwhile."""
        process = self._members.get(member)
        if process is not None and generation == self._generation:
            process.call(member.order, share)
