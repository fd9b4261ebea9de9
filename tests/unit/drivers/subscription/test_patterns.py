"""D8: a subscription to patterns follows the topics that fit them."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from stilltide.connectors.errors import FatalError, FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.memory.reader import MemoryGroupReader
from stilltide.connectors.ports.readers import NO_METADATA
from stilltide.pipeline.client.subscription import Message, Subscription
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.subscription.commits import GroupCommits
from stilltide.pipeline.drivers.subscription.deliveries import Changes, Deliveries
from stilltide.pipeline.errors import NoTopicError, SystemTopicError, TopicRecreatedError
from stilltide.schemas.topics import TopicSpec, system_topics
from stilltide.schemas.values import Offset, TopicPartition, TxnId
from tests.support.coordinator.coordinated import MARKER_PARTITIONS, CoordinatedTopic
from tests.support.coordinator.worker_client import take

X, Y = TxnId(0, 1), TxnId(0, 2)
AGE_S = 0.05
NEVER_S = 3600.0
WAIT_S = 20.0
EU, US = TopicPartition("orders-eu", 0), TopicPartition("orders-us", 0)


@pytest.fixture(autouse=True)
def _topics(broker: MemoryBroker) -> None:
    for spec in system_topics(coordinators=4, partitions=MARKER_PARTITIONS):
        broker.create_topic(spec)
    broker.create_topic(TopicSpec("orders-eu", 1))
    broker.create_topic(TopicSpec("payments", 1))


def subscribe(connector: MemoryConnector, *topics: str, **options: Any) -> Subscription:
    """A subscription, by default to the pattern of orders."""
    chosen = {"group": "billing", "connector": connector, "metadata_max_age_s": AGE_S, **options}
    return Subscription(topics or "orders-*", **chosen)


async def until_read(subscription: Subscription, *wanted: TopicPartition) -> None:
    """Returns once exactly these partitions are assigned."""
    async with asyncio.timeout(WAIT_S):
        while subscription.statistics().keys() != set(wanted):
            await subscription._opened()[0].changed(AGE_S)


async def test_a_pattern_reads_the_topics_that_fit(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Neither other topics nor those of Stilltide."""
    broker.append(EU, None, b"eu", None)
    broker.append(TopicPartition("payments", 0), None, b"no", None)
    async with subscribe(connector) as subscription:
        assert [it.value for it in await take(subscription, 1)] == [b"eu"]
        assert subscription.statistics().keys() == {EU}


@pytest.mark.parametrize("from_start", [True, False])
async def test_a_topic_that_comes_later_is_read_from_its_start(
    broker: MemoryBroker, connector: MemoryConnector, *, from_start: bool
):
    """Also by a group that began at the log end; records of transactions are filtered as ever."""
    broker.append(EU, None, b"old", None)
    async with subscribe(connector, from_start=from_start) as subscription:
        await until_read(subscription, EU)
        made = await CoordinatedTopic.create(connector, "orders-us", 1)
        await made.write(0, X, value=b"committed")
        await made.write(0, Y, value=b"aborted")
        await made.write(0, None, value=b"plain")
        await made.commit(0, X, 1)
        await made.abort(0, Y)
        found: list[Message] = []
        while len(found) < 2:
            found += [it for it in await take(subscription, 1) if it.data == US]
        await made.close()
    assert [it.value for it in found] == [b"committed", b"plain"]


async def test_a_topic_that_is_deleted_is_read_no_longer(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Reading the others goes on, and the error of the deleted one is no failure."""
    broker.create_topic(TopicSpec("orders-us", 1))
    async with subscribe(connector, metadata_max_age_s=NEVER_S) as subscription:
        await until_read(subscription, EU, US)
        broker.delete_topic("orders-us")
        await until_read(subscription, EU)
        broker.append(EU, None, b"after", None)
        assert [it.value for it in await take(subscription, 1)] == [b"after"]
        await subscription.commit()


async def test_topics_may_all_go_and_come_again(broker: MemoryBroker, connector: MemoryConnector):
    """The second topic of a name has another id and is read from its start."""
    broker.append(EU, None, b"first", None)
    async with subscribe(connector) as subscription:
        await take(subscription, 1)
        broker.delete_topic("orders-eu")
        await until_read(subscription)
        broker.create_topic(TopicSpec("orders-eu", 1))
        broker.append(EU, None, b"second", None)
        assert [it.value for it in await take(subscription, 1)] == [b"second"]


async def test_a_topic_created_again_between_two_looks_ends_the_subscription(
    broker: MemoryBroker, connector: MemoryConnector
):
    """C13: as with a plain name; offsets of two topics are never mixed."""
    broker.append(EU, None, b"first", None)
    async with subscribe(connector) as subscription:
        await take(subscription, 1)
        broker.delete_topic("orders-eu")
        broker.create_topic(TopicSpec("orders-eu", 1))
        for _ in range(2):
            broker.append(EU, None, b"second", None)
        with pytest.raises(TopicRecreatedError):
            await take(subscription, 9)


async def test_members_share_topics_that_come_later(
    broker: MemoryBroker, connector: MemoryConnector
):
    """Each partition has one member, also while one of them has not looked yet."""
    async with subscribe(connector) as first, subscribe(connector) as second:
        broker.create_topic(TopicSpec("orders-us", 2))
        wanted = {EU, US, TopicPartition("orders-us", 1)}
        async with asyncio.timeout(WAIT_S):
            while (
                first.statistics().keys() | second.statistics().keys() != wanted
                or not first.statistics()
                or not second.statistics()
            ):
                await first._opened()[0].changed(AGE_S)
        assert not first.statistics().keys() & second.statistics().keys()


@pytest.mark.parametrize("pattern", ["invoices-*", "stilltid?.*"])
async def test_a_pattern_that_nothing_fits_is_refused(connector: MemoryConnector, pattern: str):
    """D8: the error names pattern and cluster; another pattern that fits does not hide it."""
    with pytest.raises(NoTopicError) as caught:
        await subscribe(connector, "orders-*", pattern).__aenter__()
    assert pattern in caught.value.primary
    assert "of cluster memory" in caught.value.detail


async def test_a_missing_topic_beside_a_pattern_is_refused(connector: MemoryConnector):
    """A plain name must exist, as without patterns."""
    with pytest.raises(FatalError, match="does not exist"):
        await subscribe(connector, "orders-*", "absent").__aenter__()


def test_a_pattern_of_system_topics_is_refused(connector: MemoryConnector):
    """It could fit nothing that an application may read."""
    with pytest.raises(SystemTopicError):
        subscribe(connector, "stilltide.*")


class Refused(MemoryGroupReader):
    """A member whose commits the cluster refuses, as Kafka refuses one for an unknown topic."""

    def __init__(self) -> None:
        """Joins no group."""

    async def commit(
        self,
        positions: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Refuses."""
        del positions, metadata
        raise FatalError("the commit was refused")


async def test_a_failed_commit_for_a_topic_that_is_gone_is_fenced(
    broker: MemoryBroker, connector: MemoryConnector
):
    """The application commits again, as after any rebalance; other failures stay what they are."""
    async with subscribe(connector, metadata_max_age_s=NEVER_S) as subscription:
        await until_read(subscription, EU)
        driver = subscription._opened()[0]
        topics, outages = driver._topics, OutageGuard(connector.admin())
        commits = GroupCommits(Refused(), outages, Deliveries(Changes()), topics, alone=True)
        with pytest.raises(FatalError, match="refused"):
            await commits.commit_cursors({EU: Offset(0)})
        broker.create_topic(TopicSpec("orders-us", 1))
        broker.delete_topic("orders-eu")
        with pytest.raises(FencedError, match="gone"):
            await commits.commit_cursors({EU: Offset(0)})
        await until_read(subscription, US)
