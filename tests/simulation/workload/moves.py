"""Groups that leave a cluster and read on another one."""

import asyncio
import random
from collections.abc import Callable, Mapping

from stilltide.connectors.memory.broker import MemoryBroker
from tests.simulation.check import CARRIED_S
from tests.simulation.history import History, Place, Transaction, Write
from tests.simulation.plan import Plan
from tests.simulation.workload.reading import Reading


async def until(done: Callable[[], bool]) -> None:
    """Looks once a virtual second, which costs less than a call for every change."""
    while not done():  # noqa: ASYNC110 - see above
        await asyncio.sleep(1)


class GroupMoves:
    """Moves the groups of a world.

    Args:
        plan: the world.
        brokers: its clusters.
        history: its history.
        pause_links: has the links into a cluster rest, or go on.

    Attributes:
        readings: the members.
    """

    def __init__(
        self,
        plan: Plan,
        brokers: Mapping[str, MemoryBroker],
        history: History,
        pause_links: Callable[[str, bool], None],
    ) -> None:
        self._plan = plan
        self._brokers = brokers
        self._history = history
        self._pause_links = pause_links
        self._chance = random.Random(f"moves {plan.seed}")
        self._late: list[Write] = []  # what was written after all clients had ended
        self.readings: list[Reading] = []

    async def run(self) -> None:
        """Has members leave their clusters, one soon after the other."""
        moves = {move for reader in self._plan.readers for move in reader.moves}
        for at_s, cluster in sorted(moves):
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            self._move_groups(cluster)

    async def run_at_last(self) -> None:
        """Has the groups read on every cluster, where nothing is left to be read again.

        At last they leave a cluster to which no link has copied for a while: on the next one lie
        records that they have not read in front of others that they have read.
        """
        here = self._plan.clusters[0]
        for cluster in (*self._plan.clusters, here):
            await asyncio.sleep(CARRIED_S + 5)
            self._move_groups(cluster)
        await asyncio.sleep(CARRIED_S)
        self._pause_links(here, True)
        there = self._chance.choice(self._plan.clusters[1:])
        for number, cluster in enumerate((there, here)):
            self._write_late(cluster, number)
            await until(lambda: not self._unread(here))
            await asyncio.sleep(1)
        for reading in self.readings:
            await until(reading.has_committed)
        await asyncio.sleep(CARRIED_S + 5)
        self._move_groups(there)
        await asyncio.sleep(CARRIED_S)
        self._pause_links(here, False)

    def _move_groups(self, cluster: str) -> None:
        for reading in self.readings:
            reading.move(cluster)

    def _write_late(self, cluster: str, number: int) -> None:
        """Writes a record to each partition that groups read."""
        broker, now_s = self._brokers[cluster], asyncio.get_running_loop().time()
        for data in broker.partitions({it for one in self._plan.readers for it in one.topics}):
            value = f"late {number} of {cluster} {data.topic}-{data.partition}".encode()
            broker.append(data, None, value, None)
            txn = Transaction(value.decode(), now_s, is_plain=True, cluster=cluster)
            txn.writes.append(Write(Place(cluster, *data), value))
            txn.outcome, txn.ended_s = "committed", now_s
            self._history.transactions.append(txn)
            self._late.append(txn.writes[0])

    def _unread(self, cluster: str) -> list[Write]:
        """The late records of a cluster that a group has not handled."""
        groups = {it.group for it in self._plan.readers}
        return [
            write
            for write in self._late
            if write.place.cluster == cluster
            and any((group, write.value) not in self._history.handled for group in groups)
        ]
