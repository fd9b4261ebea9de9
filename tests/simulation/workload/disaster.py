"""An application that goes from cluster to cluster: it writes at an even rate, and two groups read.

One group is of `Subscription`, and one of any client that commits offsets. Both commit ten times a
second. What a group is given again on another cluster, although the group had committed it before,
was not carried over.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from stilltide.connectors.ports.readers import EndReached, Record
from stilltide.pipeline.client.subscription import Subscription
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import Offset, TopicPartition
from tests.simulation.history import History, Place, Transaction, Write
from tests.simulation.network.connector import NetworkConnector

TOPIC = "orders"
WRITE_S = 0.05
COMMIT_S = 0.1
AGAIN_S = 0.5
LEAVE_S = 30.0


class Writer:
    """Writes numbered records, to one partition after the other.

    Args:
        partition_count: the partitions of the topic.
        history: takes what is written.

    Attributes:
        acknowledged: when each value had been written that a cluster has acknowledged.
    """

    def __init__(self, partition_count: int, history: History) -> None:
        self._partition_count = partition_count
        self._history = history
        self._number = 0
        self._resting = False
        self.acknowledged: dict[bytes, float] = {}

    def rest(self, *, resting: bool) -> None:
        """Writes nothing while it is resting."""
        self._resting = resting

    async def run(self, connector: NetworkConnector) -> None:
        """Writes until its process ends."""
        writer, loop = connector.writer("writer"), asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WRITE_S)
            if self._resting:
                continue
            self._number += 1
            data = TopicPartition(TOPIC, self._number % self._partition_count)
            value = b"%d" % self._number
            txn = Transaction(str(data), loop.time(), is_plain=True, cluster=connector.cluster)
            txn.writes.append(Write(Place(connector.cluster, *data), value))
            txn.outcome = "unknown"
            self._history.transactions.append(txn)
            writer.append(data, value, partial(self._told, txn))

    def _told(self, txn: Transaction, error: Exception | None, _: object) -> None:
        if error is None:
            txn.outcome = "committed"
            self.acknowledged[txn.writes[0].value] = txn.began_s


class Group:
    """One group and its only member, which moves.

    Args:
        name: the name of the group.
        is_ours: whether the member is a `Subscription`, or any client that commits offsets.

    Attributes:
        given: messages that the group was given.
        committed: messages that a commit which was answered covers.
        again: messages that were given once more since the last turn.
    """

    def __init__(self, name: str, *, is_ours: bool) -> None:
        self.name = name
        self.is_ours = is_ours
        self.given: set[bytes] = set()
        self.committed: set[bytes] = set()
        self.again: set[bytes] = set()
        self._leaving = asyncio.Event()
        self._left = asyncio.Event()

    def begin_turn(self) -> None:
        """Begins to count what is given again."""
        self.again = set()
        self._leaving, self._left = asyncio.Event(), asyncio.Event()

    async def leave(self) -> None:
        """Has the member leave its cluster, which answers."""
        self._leaving.set()
        async with asyncio.timeout(LEAVE_S):
            await self._left.wait()

    async def run(self, connector: NetworkConnector) -> None:
        """Reads and commits until the member is to leave."""
        leaving, left = self._leaving, self._left
        read = self._subscription if self.is_ours else self._any_client
        while not leaving.is_set():
            reading = asyncio.create_task(read(connector))
            waiting = asyncio.create_task(leaving.wait())
            await asyncio.wait([reading, waiting], return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, waiting):
                task.cancel()
            try:
                with suppress(asyncio.CancelledError):
                    await reading
            except* StilltideError:
                await asyncio.sleep(AGAIN_S)
        left.set()

    async def _subscription(self, connector: NetworkConnector) -> None:
        subscription = Subscription(
            [TOPIC], group=self.name, connector=connector, client_id=self.name
        )
        async with subscription:
            passed: list[bytes] = []

            async def commit() -> None:
                covered = {*passed}
                passed.clear()
                await subscription.commit()
                self.committed |= covered

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit(commit))
                async for message in subscription:
                    self._note(message, passed)

    async def _any_client(self, connector: NetworkConnector) -> None:
        reader = connector.group_reader(self.name, self.name)
        positions: dict[TopicPartition, Offset] = {}
        passed: list[bytes] = []

        async def commit() -> None:
            covered, reached = {*passed}, {**positions}
            passed.clear()
            await reader.commit(reached)
            self.committed |= covered

        await reader.subscribe(
            [TOPIC], assigned=lambda _: positions.clear(), revoked=lambda _: positions.clear()
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit(commit))
                while True:
                    for run in await reader.read():
                        if isinstance(run, EndReached):
                            continue
                        for message in run.records:
                            self._note(message, passed)
                            positions[run.data] = Offset(message.offset + 1)
        finally:
            await reader.close()

    @staticmethod
    async def _commit(commit: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await commit()

    def _note(self, message: Record, passed: list[bytes]) -> None:
        value = message.value or b""
        if value in self.given:
            self.again.add(value)
        self.given.add(value)
        passed.append(value)
