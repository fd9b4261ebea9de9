import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.errors import UnavailableError
from stilltide.schemas.values import EndOffset, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic

X = TxnId(0, 1)
Y = TxnId(0, 2)


@pytest.fixture
def connector(bootstrap: str) -> KafkaConnector:
    """The shared broker's connector."""
    return KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))


@pytest.fixture
async def topic(connector: KafkaConnector, topic_name: str) -> AsyncIterator[CoordinatedTopic]:
    """A topic of two partitions."""
    made = await CoordinatedTopic.create(connector, topic_name, 2)
    yield made
    await made.close()


def subscribe(bootstrap: str, topic: CoordinatedTopic, **options: Any) -> Subscription:
    """A subscription to the topic, in a group of the topic's own."""
    return Subscription([topic.name], group=topic.name, bootstrap_servers=bootstrap, **options)


def delete_topic(bootstrap: str, name: str) -> None:
    """Deletes a topic and returns when the broker has agreed."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(30)


async def read_to(
    subscription: Subscription, topic: CoordinatedTopic, **end_offsets: int
) -> list[tuple[int, int]]:
    """Partition and offset of what `read_to` yields; partitions as `p0`, `p1`."""
    ends = {topic.at(int(name[1:])): EndOffset(end) for name, end in end_offsets.items()}
    return [(m.partition, m.offset) async for m in subscription.read_to(ends)]


async def test_reads_what_committed_and_goes_on_from_the_commit(
    bootstrap: str, topic: CoordinatedTopic
):
    """D1, D3: committed and plain records, in order; hidden ones never, also after a restart."""
    await topic.write(0, X, 3)
    await topic.write(0, Y, 3)
    await topic.write(0, None, 2)
    await topic.write(1, X, 2)
    await topic.write(1, Y, 2)
    for partition, end_offset in ((0, 3), (1, 2)):
        await topic.commit(partition, X, end_offset)
        await topic.abort(partition, Y)
    async with subscribe(bootstrap, topic) as subscription:
        first = [await anext(subscription) for _ in range(3)]
        await subscription.commit()
    async with subscribe(bootstrap, topic) as subscription:
        rest = await read_to(subscription, topic, p0=8, p1=4)
    seen = sorted([*((m.partition, m.offset) for m in first), *rest])
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 6), (0, 7), (1, 0), (1, 1)]


async def test_a_deleted_topic_fails_the_subscription(bootstrap: str, topic: CoordinatedTopic):
    """A topic deleted while it is read is a typed error, not silence."""
    await topic.write(0, None)
    async with subscribe(bootstrap, topic) as subscription:
        await anext(subscription)
        delete_topic(bootstrap, topic.name)
        with pytest.raises(FatalError):
            await asyncio.wait_for(anext(subscription), 60)


async def test_nobody_at_the_address_fails_in_time_and_names_it():
    """Bounded retries, then an error with the address."""
    nobody = "127.0.0.1:1"
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=nobody, request_timeout_s=0.5))
    with pytest.raises(UnavailableError) as caught:
        async with Subscription(
            ["orders"], group="g", connector=connector, unavailable_timeout_s=1.0
        ):
            pass
    assert nobody in caught.value.detail


async def test_outages(tmp_path: Path):
    """A broker that comes back is not noticed; one that stays away ends in a typed error."""
    with LocalCluster("b", tmp_path, fast_start=True) as cluster:
        bootstrap = cluster.bootstrap
        connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap))
        topic = await CoordinatedTopic.create(connector, "orders", 1)
        await topic.write(0, X)
        await topic.commit(0, X, 1)
        async with subscribe(bootstrap, topic, unavailable_timeout_s=60.0) as subscription:
            await anext(subscription)
            await subscription.commit()  # its group may forget a member before the broker is back
            waiting = asyncio.ensure_future(anext(subscription))
            await asyncio.to_thread(cluster.kill)
            await asyncio.to_thread(cluster.start)
            await topic.write(0, Y)
            await topic.commit(0, Y, 2)
            assert (await asyncio.wait_for(waiting, 60)).offset == 1
            await subscription.commit()
        async with subscribe(bootstrap, topic, unavailable_timeout_s=2.0) as subscription:
            again = await read_to(subscription, topic, p0=2)
            assert again in ([], [(0, 1)])  # a member that lost the partition commits nothing
            await asyncio.to_thread(cluster.kill)
            with pytest.raises(UnavailableError) as caught:
                await asyncio.wait_for(anext(subscription), 60)
        assert bootstrap in caught.value.detail
        await topic.close()
