"""Members that come, go and vanish while they copy: each message has exactly one visible copy."""

import asyncio
import random
from contextlib import suppress

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker

SOURCE, TARGET = "orders", "payments"
PARTITIONS = 3
COUNT = 400
CONCURRENCY = 8
WAIT_S = 60.0


class Copier:
    """One member of the group, with a client of its own, until it is told how to end."""

    def __init__(self, connector: MemoryConnector, chance: random.Random) -> None:
        self._connector = connector
        self._chance = chance
        self._client: TransactionClient | None = None
        self.task = asyncio.create_task(self._run())

    async def end(self) -> None:
        """Ends it, in order or in the middle of whatever it does."""
        if self._chance.random() < 0.5 and self._client is not None:
            assert self._client._cluster is not None
            await self._client._cluster.close()  # what is open stays so until its time-out
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def _run(self) -> None:
        messages: asyncio.Queue[Message] = asyncio.Queue(CONCURRENCY)
        async with (
            TransactionClient(connector=self._connector, transaction_timeout_s=0.3) as client,
            Subscription(
                [SOURCE], group="copiers", connector=self._connector, acknowledgements=True
            ) as subscription,
            asyncio.TaskGroup() as tasks,
        ):
            self._client = client
            for _ in range(CONCURRENCY):
                tasks.create_task(self._work(client, subscription, messages))
            async for message in subscription:
                await messages.put(message)

    async def _work(
        self,
        client: TransactionClient,
        subscription: Subscription,
        messages: asyncio.Queue[Message],
    ) -> None:
        while True:
            message = await messages.get()
            try:
                async with client.transaction() as txn:
                    await txn.acknowledge(subscription, message)
                    await txn.send(TARGET, message.value)
                    if self._chance.random() < 0.2:
                        await txn.abort()
            except StilltideError:
                continue  # a rebalance or its own end came first; the message comes again


@pytest.mark.parametrize("seed", range(4))
async def test_each_message_has_one_visible_copy(seed: int):
    """G: none is lost and none doubled, whatever ends in the middle, whichever member goes on."""
    chance = random.Random(seed)
    broker = MemoryBroker()
    connector = MemoryConnector(broker)
    for topic in (SOURCE, TARGET):
        broker.create_topic(TopicSpec(topic, PARTITIONS))
    for number in range(COUNT):
        data = TopicPartition(SOURCE, number % PARTITIONS)
        broker.append(data, None, b"%d" % number, None)
    expected = sorted(b"%d" % number for number in range(COUNT))
    seen: list[bytes | None] = []
    async with (
        MemoryWorker(connector, coordinators=2),
        Subscription([TARGET], group="watch", connector=connector) as watch,
        asyncio.timeout(WAIT_S),
    ):
        copiers = [Copier(connector, chance) for _ in range(2)]
        while len(seen) < COUNT:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02 + 0.2 * chance.random()):
                    while len(seen) < COUNT:
                        seen.append((await anext(watch)).value)
            if chance.random() < 0.4:
                await copiers.pop(0).end()
                copiers.append(Copier(connector, chance))
        for copier in copiers:
            assert not copier.task.done(), copier.task.exception()
            await copier.end()
        ends = {
            data: EndOffset(broker.records(data)[-1].offset + 1)
            for data in (TopicPartition(TARGET, it) for it in range(PARTITIONS))
            if broker.records(data)
        }
        seen += [it.value async for it in watch.read_to(ends)]
    assert sorted(map(bytes, filter(None, seen))) == expected
