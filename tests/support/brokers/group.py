"""A consumer group of two members that commit what they read, and what they were given."""

import asyncio
import time
from collections import Counter
from contextlib import suppress

from stilltide.connectors.errors import FencedError
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.client import Message, Subscription
from tests.support.brokers.progress import Progress

MEMBERS = 2
COMMIT_S = 0.2
AWAY_S = 120.0
"""How long a member bears that the cluster is away, on a busy machine."""


class Group:
    """Members that read until `stop`; each commits in between and when it leaves.

    *Invariants*: no message below a committed position is delivered again; a member is given the
    messages of an assignment in offset order. A breach fails `run`.

    Args:
        connector: of the cluster.
        topic: what the members read.
        name: of the group.
    """

    def __init__(self, connector: Connector, topic: str, name: str) -> None:
        self.progress = Progress(f"group {name}")
        self.seen: Counter[tuple[int, int]] = Counter()
        """How often each message, by partition and offset, was delivered."""
        self._connector = connector
        self._topic, self._name = topic, name
        self._committed: dict[int, int] = {}
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Has the members commit and leave."""
        self._stopped.set()

    async def run(self) -> None:
        """Reads until `stop`."""
        async with asyncio.TaskGroup() as members:
            for number in range(MEMBERS):
                members.create_task(self._member(number))

    async def has_seen(self, messages: set[tuple[int, int]]) -> None:
        """Waits until every message was delivered."""
        while missing := len(messages - self.seen.keys()):
            await self.progress.more(min(missing, 1))

    async def _member(self, number: int) -> None:
        async with Subscription(
            [self._topic],
            group=self._name,
            connector=self._connector,
            unavailable_timeout_s=AWAY_S,
        ) as subscription:
            reading = asyncio.create_task(self._read(subscription, number))
            stopped = asyncio.create_task(self._stopped.wait())
            try:
                await asyncio.wait([reading, stopped], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
                reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await self._commit(subscription, subscription.rebalance_count, {})

    async def _read(self, subscription: Subscription, number: int) -> None:
        due_s = time.monotonic() + COMMIT_S
        assignment, last = -1, dict[int, int]()
        async for batch in subscription.batches():
            if subscription.rebalance_count != assignment:
                assignment, last = subscription.rebalance_count, {}
            for message in batch:
                self._take(message, number, last)
            if time.monotonic() >= due_s:
                await self._commit(subscription, assignment, last)
                due_s = time.monotonic() + COMMIT_S

    def _take(self, message: Message, number: int, last: dict[int, int]) -> None:
        place = message.partition, message.offset
        assert message.offset > last.get(message.partition, -1), f"{message} came twice"
        committed = self._committed.get(message.partition, 0)
        assert message.offset >= committed, f"{message} was committed up to {committed}"
        last[message.partition] = message.offset
        self.seen[place] += 1
        self.progress.step(number)

    async def _commit(
        self, subscription: Subscription, assignment: int, last: dict[int, int]
    ) -> None:
        with suppress(FencedError):  # the partitions moved: the next member reads again
            await subscription.commit()
            if subscription.rebalance_count == assignment:
                for partition, offset in last.items():
                    self._committed[partition] = max(self._committed.get(partition, 0), offset + 1)
