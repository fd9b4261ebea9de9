"""C13: partitions are added under a subscription, or its topic is created again."""

import asyncio
from typing import Any

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.errors import TopicRecreatedError
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, encode_end, end_key
from stilltide.schemas.topics import TXN_SNAPSHOTS, TopicSpec
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import MARKER_PARTITIONS, CoordinatedTopic
from tests.support.coordinator.worker_client import take

X, Y = TxnId(0, 1), TxnId(0, 2)
AGE_S = 0.05
NEVER_S = 3600.0
WAIT_S = 20.0
FORMER = b"f" * 16


def subscribe(connector: MemoryConnector, **options: Any) -> Subscription:
    """A subscription to the topic."""
    return Subscription(["orders"], **{"group": "billing", "connector": connector, **options})


def create_again(broker: MemoryBroker, records: int = 0) -> None:
    """Deletes the topic, and creates another one with plain records under its name."""
    broker.delete_topic("orders")
    broker.create_topic(TopicSpec("orders", 2))
    for _ in range(records):
        broker.append(TopicPartition("orders", 0), None, b"new", None)


@pytest.mark.parametrize("from_start", [True, False])
async def test_an_added_partition_is_read_from_its_start(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic, *, from_start: bool
):
    """C13: also by a group that began at the log end, and also records written before the age."""
    await topic.write(0, None)
    async with subscribe(
        connector, from_start=from_start, metadata_max_age_s=AGE_S
    ) as subscription:
        if from_start:
            await take(subscription, 1)
            await subscription.commit()
        async with asyncio.timeout(WAIT_S):
            while subscription.position(topic.at(1)) is None:
                await subscription._opened()[0].changed(AGE_S)
        broker.add_partitions("orders", 3)
        await topic.write(2, X, 2)
        await topic.commit(2, X, 2)
        found = await take(subscription, 2)
    assert [(it.partition, it.offset) for it in found] == [(2, 0), (2, 1)]


async def test_the_end_offset_of_a_former_topics_commit_decides_nothing(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """E8: the record past that offset is not late; the snapshot decides, as in batch reads."""
    await topic.write(0, None, 3)
    await topic.write(0, X)
    await topic.write(0, None)
    await topic.commit(0, X, 2, topic_id=FORMER)
    async with subscribe(connector) as subscription:
        assert [it.offset for it in await take(subscription, 3)] == [0, 1, 2]
        await topic.write(1, Y)
        await topic.commit(1, Y, 1)
        assert (await take(subscription, 1))[0].partition == 1
        (blocked,) = subscription.blocked
        assert (blocked.data, blocked.offset, blocked.txn) == (topic.at(0), 3, X)
        snapshots = TopicPartition(TXN_SNAPSHOTS, topic.markers_of(0).partition)
        assert snapshots.partition < MARKER_PARTITIONS
        end = SnapshotEnd(
            topic.topic_id, EndOffset(5), EndOffset(1), 1, (), {}, {}, EndOffset(0), ()
        )
        broker.append(snapshots, end_key(topic.at(0)), encode_end(end), [])
        assert [it.offset for it in await take(subscription, 2)] == [3, 4]
        assert subscription.statistics()[topic.at(0)].late == 0


async def test_an_abort_of_a_former_topic_hides_its_transaction(
    connector: MemoryConnector, topic: CoordinatedTopic
):
    """D1: an abort hides at every offset, so the topic id of its marker does not matter."""
    await topic.write(0, X)
    await topic.write(0, None)
    aborting = CoordinatedTopic(connector, "orders", FORMER)
    await aborting.abort(0, X)
    async with subscribe(connector) as subscription:
        assert [it.offset for it in await take(subscription, 1)] == [1]
    await aborting.close()


async def test_a_topic_created_again_ends_the_subscription(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """C13: the error names the topic and both ids, within the age."""
    await topic.write(0, None)
    async with subscribe(connector, metadata_max_age_s=AGE_S) as subscription:
        await take(subscription, 1)
        create_again(broker, records=2)
        with pytest.raises(TopicRecreatedError) as caught:
            await take(subscription, 10)
    now = broker.topics["orders"].description.topic_id
    assert caught.value.topic == "orders"
    assert topic.topic_id.hex() in caught.value.detail
    assert now.hex() in caught.value.detail


async def test_a_marker_of_the_new_topic_has_the_reader_look_at_once(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """C13: no coordinated record of the new topic is delivered from a position in the former."""
    await topic.write(0, None)
    async with subscribe(connector, metadata_max_age_s=NEVER_S) as subscription:
        await take(subscription, 1)
        create_again(broker, records=1)
        await topic.write(0, X)
        await topic.commit(0, X, 2, topic_id=broker.topics["orders"].description.topic_id)
        with pytest.raises(TopicRecreatedError):
            await take(subscription, 1)


async def test_a_position_past_the_end_of_the_new_topic_names_the_cause(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """C13: the error of the read has the reader look before it fails."""
    await topic.write(0, None, 5)
    async with subscribe(connector, metadata_max_age_s=NEVER_S) as subscription:
        await take(subscription, 5)
        create_again(broker)
        with pytest.raises(TopicRecreatedError):
            await take(subscription, 1)


async def test_a_deleted_topic_is_not_taken_for_another_one(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """C13: without another topic of the name, the error says that the topic is gone."""
    await topic.write(0, None)
    async with subscribe(connector, metadata_max_age_s=AGE_S) as subscription:
        await take(subscription, 1)
        broker.delete_topic("orders")
        with pytest.raises(FatalError, match="does not exist"):
            await take(subscription, 1)
