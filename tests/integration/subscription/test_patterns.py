"""D8 on a real broker: topics that fit a pattern come and go while a subscription reads."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.errors import NoTopicError
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.processes.worker_process import WorkerProcess

AGE_S = 0.5
WAIT_S = 180.0


async def create(connector: KafkaConnector, *topics: str) -> None:
    """Topics of one partition."""
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(topic, 1) for topic in topics])
    await admin.close()


def delete(bootstrap: str, topic: str) -> None:
    """Returns once the broker has taken the deletion."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (deleted,) = admin.delete_topics([topic]).values()
    deleted.result(WAIT_S)


async def write(bootstrap: str, topic: str, tag: str) -> list[bytes]:
    """Two committed transactions around an aborted one; the committed values."""
    async with TransactionClient(bootstrap) as client:
        for number in range(3):
            async with client.transaction() as txn:
                for n in range(5):
                    await txn.send(topic, f"{tag}-{number}-{n}".encode(), partition=0)
                if number == 1:
                    await txn.flush()
                    await txn.abort()
    return [f"{tag}-{number}-{n}".encode() for number in (0, 2) for n in range(5)]


async def take_of(subscription: Subscription, topic: str, count: int) -> list[Message]:
    """The next messages of a topic; those of others may come again after a rebalance."""
    found: list[Message] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            message = await anext(subscription)
            if message.topic == topic:
                found.append(message)
    return found


async def until_read(subscription: Subscription, *topics: str) -> None:
    """Returns once exactly the only partitions of these topics are assigned."""
    async with asyncio.timeout(WAIT_S):
        while subscription.statistics().keys() != {TopicPartition(it, 0) for it in topics}:
            await subscription._opened()[0].changed(AGE_S)


async def until_left(subscription: Subscription) -> None:
    """Returns once the subscription knows of no topic; a rebalance alone shows no partitions."""
    driver = subscription._opened()[0]
    async with asyncio.timeout(WAIT_S):
        while driver._topics.ids:
            await driver.changed(AGE_S)


@pytest.mark.parametrize("acknowledgements", [False, True])
async def test_topics_come_and_go(bootstrap: str, tmp_path: Path, *, acknowledgements: bool):
    """A new one is read from its start, its aborted records are hidden; a deleted one is left.

    One that comes again is read from its start, too, though the offsets were acknowledged (G3).
    """
    tag = f"orders-{uuid4().hex[:8]}"
    first, second = f"{tag}-first", f"{tag}-second"
    connector = KafkaConnector(KafkaConfig(bootstrap))
    await create(connector, first, f"{tag}-billing-DLQ")
    async with WorkerProcess(
        bootstrap, tmp_path / "worker.log", "--instance-id", f"w-{tag}"
    ) as worker:
        await worker.serving()
        async with Subscription(
            f"{tag}-*",
            group="billing",
            connector=connector,
            from_start=False,
            acknowledgements=acknowledgements,
            metadata_max_age_s=AGE_S,
        ) as orders:
            await until_read(orders, first)
            wanted = await write(bootstrap, first, "first")
            assert [it.value for it in await take_of(orders, first, 10)] == wanted
            await create(connector, second)
            wanted = await write(bootstrap, second, "second")
            found = await take_of(orders, second, 10)
            assert [it.value for it in found] == wanted
            if acknowledgements:
                orders.acknowledge_cumulative(found[-1])
            await orders.commit()
            await asyncio.to_thread(delete, bootstrap, first)
            await until_read(orders, second)
            wanted = await write(bootstrap, second, "more")
            assert [it.value for it in await take_of(orders, second, 10)] == wanted
            await orders.commit()
            await asyncio.to_thread(delete, bootstrap, second)
            await until_left(orders)
            await create(connector, second)
            wanted = await write(bootstrap, second, "again")
            assert [it.value for it in await take_of(orders, second, 10)] == wanted


async def test_a_topic_that_was_created_again_is_read_from_its_start(
    bootstrap: str, tmp_path: Path
):
    """G3: the same group and name, and offsets that were acknowledged in the former topic."""
    topic = f"orders-{uuid4().hex[:8]}"
    connector = KafkaConnector(KafkaConfig(bootstrap))
    options = {"group": "billing", "connector": connector, "acknowledgements": True}
    async with WorkerProcess(
        bootstrap, tmp_path / "worker.log", "--instance-id", f"w-{topic}"
    ) as worker:
        await worker.serving()
        for tag in ("former", "latter"):
            await create(connector, topic)
            wanted = await write(bootstrap, topic, tag)
            async with Subscription([topic], **options) as orders:
                found = await take_of(orders, topic, 10)
                assert [it.value for it in found] == wanted
                orders.acknowledge_cumulative(found[-1])
                await orders.commit()
            await asyncio.to_thread(delete, bootstrap, topic)


async def test_nothing_fits(bootstrap: str):
    """The error names the pattern and the cluster's id."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    cluster_id = await admin.cluster_id()
    await admin.close()
    with pytest.raises(NoTopicError) as caught:
        await Subscription("absent-*", group="g", connector=connector).__aenter__()
    assert "'absent-*'" in caught.value.primary
    assert cluster_id in caught.value.detail
