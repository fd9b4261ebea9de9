"""A consumer group of two members that commit what they read, and what they were given."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from stilltide.connectors.errors import FencedError, RetriableError
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client import Message, Subscription
from stilltide.schemas.values import TopicPartition
from tests.support.brokers.progress import PROGRESS_S, Pacing, Progress

MEMBERS = 2
COMMIT_S = 0.2
AWAY_S = 120.0
"""How long a member bears that the cluster is away, on a busy machine."""


class Group:
    """Members that read until `stop`, and commit meanwhile.

    *Invariants*: no message below a committed position is delivered again; a member is given the
    messages of an assignment in offset order. A breach fails `run`.

    Args:
        connector: of the cluster.
        topic: what the members read.
        name: of the group.
    """

    def __init__(self, connector: GroupConnector, topic: str, name: str) -> None:
        self.progress = Progress(f"group {name}")
        self.seen: Counter[tuple[int, int]] = Counter()
        """How often each message, by partition and offset, was delivered."""
        self._connector = connector
        self._topic, self._name = topic, name
        self._committed: dict[int, int] = {}
        self._pacing = Pacing(COMMIT_S)

    def stop(self) -> None:
        """Has the members leave."""
        self._pacing.stop()

    async def run(self) -> None:
        """Reads until `stop`."""
        async with asyncio.TaskGroup() as members:
            for number in range(MEMBERS):
                members.create_task(self._member(number))

    async def has_committed(self, messages: set[tuple[int, int]]) -> None:
        """Waits until every message was delivered, and lies below a committed position.

        Raises:
            AssertionError: messages are missing after half of `PROGRESS_S`; names them, and the
                positions.
        """
        partitions = [TopicPartition(self._topic, it) for it in {it for it, _ in messages}]
        admin = self._connector.group_admin()
        committed: dict[TopicPartition, Committed] = {}
        beyond = unseen = messages
        try:
            async with asyncio.timeout(PROGRESS_S / 2):
                while unseen or beyond:
                    with suppress(RetriableError):
                        committed = (await admin.committed([self._name], partitions))[self._name]
                    unseen = messages - self.seen.keys()
                    beyond = {it for it in messages if not self._below(committed, *it)}
        except TimeoutError:
            raise AssertionError(f"{unseen=}, {beyond=}, {committed=}") from None
        finally:
            await admin.close()

    def _below(
        self, committed: Mapping[TopicPartition, Committed], partition: int, offset: int
    ) -> bool:
        position = committed.get(TopicPartition(self._topic, partition))
        return position is not None and offset < position.offset

    async def _member(self, number: int) -> None:
        async with Subscription(
            [self._topic],
            group=self._name,
            connector=self._connector,
            unavailable_timeout_s=AWAY_S,
        ) as subscription:
            delivered = _Delivered()
            working = asyncio.gather(
                self._read(subscription, number, delivered),
                self._commit_at_times(subscription, delivered),
            )
            stopped = asyncio.create_task(self._pacing.stopped.wait())
            try:
                await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
            finally:
                stopped.cancel()
                working.cancel()
            with suppress(asyncio.CancelledError):
                await working

    async def _read(self, subscription: Subscription, number: int, delivered: "_Delivered") -> None:
        async for batch in subscription.batches():
            if subscription.rebalance_count != delivered.assignment:
                delivered.assignment, delivered.last = subscription.rebalance_count, {}
            for message in batch:
                self._take(message, number, delivered.last)

    def _take(self, message: Message, number: int, last: dict[int, int]) -> None:
        place = message.partition, message.offset
        assert message.offset > last.get(message.partition, -1), f"{message} came twice"
        committed = self._committed.get(message.partition, 0)
        assert message.offset >= committed, f"{message} was committed up to {committed}"
        last[message.partition] = message.offset
        self.seen[place] += 1
        self.progress.step(number)

    async def _commit_at_times(self, subscription: Subscription, delivered: "_Delivered") -> None:
        while await self._pacing.next():
            assignment, last = delivered.assignment, dict(delivered.last)
            with suppress(FencedError):  # the partitions moved: the next member reads again
                await subscription.commit()
                if subscription.rebalance_count == assignment:
                    for partition, offset in last.items():
                        self._committed[partition] = max(
                            self._committed.get(partition, 0), offset + 1
                        )


@dataclass(slots=True)
class _Delivered:
    """What a member was given last."""

    assignment: int = -1
    """`rebalance_count` of the subscription at the delivery."""

    last: dict[int, int] = field(default_factory=dict)
    """The last offset of each partition since then."""
