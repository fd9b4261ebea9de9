"""Positions on a real broker: seek, times, and what a group has not read."""

import asyncio
from pathlib import Path
from uuid import uuid4

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import TimedRecord
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.processes.operator import Operator
from tests.support.processes.worker_process import WorkerProcess

COUNT = 50
WAIT_S = 180.0


async def take(subscription: Subscription, count: int) -> list[Message]:
    """The next messages."""
    async with asyncio.timeout(WAIT_S):
        return [await anext(subscription) for _ in range(count)]


async def write(client: TransactionClient, topic: str) -> None:
    """Records in both partitions, with an aborted transaction in between."""
    for first in (0, COUNT // 2):
        async with client.transaction() as txn:
            for number in range(first, first + COUNT // 2):
                for partition in (0, 1):
                    await txn.send(topic, b"%d" % number, partition=partition)
        async with client.transaction() as txn:
            await txn.send(topic, b"aborted", partition=0)
            await txn.flush()
            await txn.abort()


async def timestamp_of(connector: KafkaConnector, message: Message) -> int:
    """The timestamp of a record."""
    reader = connector.reader("times", timestamps=True)
    try:
        await reader.assign({message.data: message.offset})
        async with asyncio.timeout(WAIT_S):
            while True:
                for item in await reader.read():
                    if isinstance(item, TimedRecord):
                        return item.timestamp_ms
    finally:
        await reader.close()


def begins_of(messages: list[Message]) -> dict[TopicPartition, int]:
    """The first offset of each partition."""
    return {
        data: min(it.offset for it in messages if it.data == data)
        for data in {it.data for it in messages}
    }


async def test_seek_time_and_lag(bootstrap: str, tmp_path: Path):
    """Back and forth in one partition, without a record lost or doubled in the other."""
    topic, group = f"orders-{uuid4().hex[:8]}", "billing"
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    connector, operator = KafkaConnector(KafkaConfig(bootstrap)), Operator(bootstrap, tmp_path)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic, 2)])
    await admin.close()
    async with WorkerProcess(
        bootstrap, tmp_path / "worker.log", "--instance-id", f"w-{topic}"
    ) as worker:
        await worker.serving()
        async with TransactionClient(bootstrap) as client:
            await write(client, topic)
        async with Subscription([topic], group=group, connector=connector) as plain:
            messages = await take(plain, 2 * COUNT)
            await plain.seek(first, messages[0].offset)
            own = [it for it in messages if it.data == first]
            await plain.seek(first, own[10].offset)
            assert await take(plain, COUNT - 10) == own[10:]
            since = await timestamp_of(connector, own[COUNT // 2])
            moved = await plain.seek_to_time(since)
            assert moved[first] <= own[COUNT // 2].offset
            again = await take(plain, 2 * (COUNT // 2))
            begins = begins_of(again)
            assert {it.value for it in again} >= {b"%d" % it for it in range(COUNT // 2, COUNT)}
            await plain.seek(first, own[20].offset)
            await plain.seek_to_time(since + 86_400_000, [second])
            await plain.commit()
        rows = await operator.ask(f"group lag {topic} {group}")
        assert [row["visible"] for row in rows] == [COUNT - 20, 0]
        assert [row["at_least"] for row in rows] == [False, False]
        assert await operator.ask(f"group lag {topic[:-1]}? {group}") == rows
        (bounded, _) = await operator.ask(f"group lag {topic} {group} --records-max 5")
        assert (bounded["visible"], bounded["at_least"]) == (5, True)
        async with Subscription(
            [topic], group=group, connector=connector, acknowledgements=True
        ) as orders:
            begun = await take(orders, 5)
            assert begun == own[20:25]
            orders.acknowledge(begun[4])
            await orders.seek(first, begun[2].offset)
            again = await take(orders, 2)
            assert again == begun[2:4]
            assert (await take(orders, 1))[0] == own[25]
        async with Subscription(
            [topic], group="since", connector=connector, since_ms=since
        ) as later:
            found = await take(later, 2 * (COUNT // 2))
            assert begins_of(found) == begins
