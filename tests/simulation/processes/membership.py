"""A model of what Faust does for a worker: the group of the workers, and its assignments.

*Source*: docs/protocols B; pipeline/agents/apps.py. Only what Faust does is modelled: a
worker's owners follow a `Member` as they follow a Faust App.

An assignment is late, reaches the workers at different moments, so that owners overlap or are
absent, and is sometimes wrong for a while. The model keeps equal partition numbers of topics
together, as Faust's assignor does.
"""

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.network.connector import NetworkConnector
from tests.simulation.processes.process import EVERYWHERE, PROCESS, Process

SESSION_S = 5.0
"""Time after which a silent worker loses its partitions."""

ERR_S = 4.0
"""How long a wrong assignment may last."""

COMMIT_S = 0.5
RETRY_S = 0.25


class Member:
    """The membership of one worker: its orders from the group, its consumer, and its owners."""

    def __init__(self, connector: NetworkConnector, group: "WorkerGroup") -> None:
        self.group = group
        self._reader = connector.reader("workers", committed=False)
        self._runtimes: list[Runtime[Any, Any]] = []
        self._asked: dict[str, Runtime[Any, Any]] = {}
        self._records: asyncio.Queue[Record] = asyncio.Queue()
        self._orders: asyncio.Queue[set[TopicPartition]] = asyncio.Queue()
        self._taken: dict[TopicPartition, int] = {}
        self._commit_due = False
        self._given: set[TopicPartition] = set()

    @property
    def topics(self) -> list[str]:
        """The topics of requests to owners."""
        return list(self._asked)

    def follow(self, runtime: Runtime[Any, Any]) -> None:
        """Has owners follow the assignments, and take the requests, of this member."""
        placement = runtime.placement
        self._runtimes.append(runtime)
        if placement.is_asked:
            names = (placement.topic, placement.operator_topic)
            self._asked |= {name: runtime for name in names if name is not None}

    def order(self, partitions: set[TopicPartition]) -> None:
        """The group has assigned these partitions."""
        self._orders.put_nowait(partitions)

    async def run(self) -> None:
        """Follows the group's orders until cancelled."""
        self.group.join(self)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._rebalance())
            tasks.create_task(self._read())
            tasks.create_task(self._hand_over())

    async def _rebalance(self) -> None:
        while True:
            partitions = await self._orders.get()
            for runtime in self._runtimes:
                runtime.revoke()
            self.group.commit(self, self._taken)
            self._given, self._taken = set(), {}
            await self._reader.assign({})
            while not self._records.empty():  # as Faust does in a rebalance
                self._records.get_nowait()
            await asyncio.sleep(self.group.chance.expovariate(4))
            if not self._orders.empty():
                continue
            self._given = partitions
            ordered = sorted(partitions)
            positions = {data: Offset(self.group.committed.get(data, 0)) for data in ordered}
            for runtime in self._runtimes:
                topic = runtime.placement.topic
                await runtime.assign(data.partition for data in ordered if data.topic == topic)
            await self._reader.assign(positions)

    async def _read(self) -> None:
        while True:
            try:
                items = await self._reader.read()
            except ConnectorError:
                await asyncio.sleep(RETRY_S)
                continue
            for item in items:
                if isinstance(item, Record):
                    self._records.put_nowait(item)

    async def _hand_over(self) -> None:
        while True:
            record = await self._records.get()
            self._asked[record.topic].received(record.data, record.offset, record.value)
            if record.data in self._given:
                self._taken[record.data] = record.offset + 1
                if not self._commit_due:
                    self._commit_due = True
                    asyncio.get_running_loop().call_later(COMMIT_S, self._commit)

    def _commit(self) -> None:
        self._commit_due = False
        self.group.commit(self, self._taken)


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
                is_heard = process.runs and process.paths[self._broker.cluster_id].is_open
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
        partitions = self._broker.partitions(members[0].topics)
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
