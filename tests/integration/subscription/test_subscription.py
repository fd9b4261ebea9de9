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
from stilltide.pipeline.errors import NotAssignedError, UnavailableError, UndecidedError
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


async def test_waits_for_the_marker_of_an_undecided_record(bootstrap: str, topic: CoordinatedTopic):
    """D2: stands at the undecided record, says so, and goes on when the marker comes."""
    await topic.write(0, None)
    await topic.write(0, X)
    await topic.write(0, None)
    async with subscribe(bootstrap, topic, undecided_timeout_s=0.5) as subscription:
        with pytest.raises(UndecidedError) as caught:
            await read_to(subscription, topic, p0=3)
        assert caught.value.place == f"{topic.name}/0@1"
        await topic.commit(0, X, 2)
        assert await read_to(subscription, topic, p0=3) == [(0, 1), (0, 2)]


async def test_pauses_behind_an_undecided_record_and_loses_nothing(
    bootstrap: str, topic: CoordinatedTopic
):
    """D7: much more than the limit waits at the broker, and all of it comes in order."""
    count = 5000
    await topic.write(0, X)
    await topic.write(0, None, count, value=b"x" * 100)
    async with subscribe(
        bootstrap, topic, undecided_records_max=100, undecided_timeout_s=1.0
    ) as subscription:
        with pytest.raises(UndecidedError):
            await read_to(subscription, topic, p0=count + 1)
        await topic.commit(0, X, 1)
        offsets = [offset for _, offset in await read_to(subscription, topic, p0=count + 1)]
    assert offsets == list(range(count + 1))


async def test_a_slow_application_gets_everything(bootstrap: str, topic: CoordinatedTopic):
    """A full buffer pauses fetching; no record is lost or repeated when it goes on."""
    count = 3000
    await topic.write(0, None, count)
    await topic.write(1, None, count)
    async with subscribe(bootstrap, topic, buffer_records_max=50) as subscription:
        seen = await read_to(subscription, topic, p0=count, p1=count)
    for partition in (0, 1):
        assert [o for p, o in seen if p == partition] == list(range(count))


async def test_a_second_member_takes_over_half(bootstrap: str, topic: CoordinatedTopic):
    """After a rebalance each member reads its partition, from the committed position on."""
    await topic.write(0, None, 10)
    await topic.write(1, None, 10)
    async with subscribe(bootstrap, topic, assignment_timeout_s=5.0) as first:
        assert len(await read_to(first, topic, p0=5, p1=5)) == 10
        await first.commit()
        async with subscribe(bootstrap, topic) as second:
            theirs = [await anext(second) for _ in range(5)]
            (lost,) = {message.partition for message in theirs}
            assert [message.offset for message in theirs] == [5, 6, 7, 8, 9]
            mine = await read_to(first, topic, **{f"p{1 - lost}": 10})
            assert mine == [(1 - lost, offset) for offset in range(5, 10)]
            with pytest.raises(NotAssignedError):
                await read_to(first, topic, **{f"p{lost}": 11})


async def test_missing_topics_are_named(bootstrap: str, topic: CoordinatedTopic):
    """A topic that does not exist fails the start, not the first read."""
    with pytest.raises(FatalError, match="does not exist") as caught:
        async with Subscription([f"{topic.name}-no"], group="g", bootstrap_servers=bootstrap):
            pass
    assert caught.value.topic == f"{topic.name}-no"


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
