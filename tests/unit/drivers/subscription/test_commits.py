"""What is committed of a position that moves without a message: what lag monitors see."""

import asyncio

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.drivers.subscription import commits
from stilltide.schemas.values import Offset, TxnId
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.coordinator.worker_client import take
from tests.support.coordinator.worker_memory import until


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A position that has moved is committed as soon as somebody waits."""
    monkeypatch.setattr(commits, "MOVED_S", 0.0)


def subscribe(connector: MemoryConnector) -> Subscription:
    """A member of the group."""
    return Subscription(["orders"], group="billing", connector=connector)


async def abort(topic: CoordinatedTopic, sequence: int) -> None:
    """Two records of a transaction that aborts, in partition 0."""
    txn = TxnId(0, sequence)
    await topic.write(0, txn, 2)
    await topic.abort(0, txn)


async def wait_behind(subscription: Subscription, topic: CoordinatedTopic, offset: int) -> None:
    """Waits for a message, which does not come, until the position is there; then gives up."""
    waiting = asyncio.create_task(take(subscription))
    await until(lambda: subscription.position(topic.at(0)) == offset)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_a_tail_of_aborted_records_is_committed_without_a_message(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """Once all messages before are committed; a member that comes next is no exception."""
    group = broker.group("billing")
    await topic.write(0, None)
    async with subscribe(connector) as subscription:
        await take(subscription)
        await subscription.commit()
        waiting = asyncio.create_task(take(subscription))
        await abort(topic, 1)
        await until(lambda: group.committed[topic.at(0)].offset == 3)
        waiting.cancel()
        await asyncio.wait([waiting])
    await abort(topic, 2)
    async with subscribe(connector) as subscription:
        waiting = asyncio.create_task(take(subscription))
        await until(lambda: group.committed[topic.at(0)].offset == 5)
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_nothing_is_committed_behind_a_message_that_is_not(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """Neither while the application waits for the next one, nor when it leaves."""
    group = broker.group("billing")
    await topic.write(0, None, 2)
    async with subscribe(connector) as subscription:
        await take(subscription)
        await subscription.commit()
        await take(subscription)
        await abort(topic, 1)
        await wait_behind(subscription, topic, 4)
    assert group.committed[topic.at(0)].offset == 1


async def test_the_first_commit_is_the_applications(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """A program that keeps its positions elsewhere has none with the group."""
    group = broker.group("billing")
    await abort(topic, 1)
    async with subscribe(connector) as subscription:
        await wait_behind(subscription, topic, 2)
    assert not group.committed


async def test_after_a_seek_the_application_commits_first(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """The group keeps its position where a member only looks back."""
    group = broker.group("billing")
    await abort(topic, 1)
    await topic.write(0, None)
    async with subscribe(connector) as subscription:
        await take(subscription)
        await subscription.commit()
        await subscription.seek(topic.at(0), 0)
        await take(subscription)
        await abort(topic, 2)
        await wait_behind(subscription, topic, 5)
    assert group.committed[topic.at(0)].offset == 3


async def test_after_a_seek_a_position_is_committed_once(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """A later commit says nothing about a position that has not moved since."""
    group = broker.group("billing")
    await topic.write(0, None, 3)
    async with subscribe(connector) as subscription:
        await take(subscription)
        await subscription.seek(topic.at(0), 2)
        await subscription.commit()
        assert group.committed[topic.at(0)].offset == 2
        group.committed[topic.at(0)] = Committed(Offset(0), "an operator's")
        await subscription.commit()
        assert group.committed[topic.at(0)].offset == 0
        await take(subscription)
        await subscription.commit()
        assert group.committed[topic.at(0)].offset == 3


async def test_after_a_seek_and_a_commit_a_tail_is_committed_without_a_message(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """As before the seek: the application has committed all that it was given."""
    group = broker.group("billing")
    await topic.write(0, None, 2)
    async with subscribe(connector) as subscription:
        await take(subscription)
        await subscription.seek(topic.at(0), 1)
        await take(subscription)
        await subscription.commit()
        waiting = asyncio.create_task(take(subscription))
        await abort(topic, 1)
        await until(lambda: group.committed[topic.at(0)].offset == 4)
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_a_seek_during_a_commit_is_committed_by_the_application(
    broker: MemoryBroker, connector: MemoryConnector, topic: CoordinatedTopic
):
    """The commit under way is of what was read before; nothing else is committed by itself."""
    group = broker.group("billing")
    await topic.write(0, None, 2)
    async with subscribe(connector) as subscription:
        await take(subscription)
        committing = asyncio.create_task(subscription.commit())
        await asyncio.sleep(0)
        await subscription.seek(topic.at(0), 0)
        await committing
        await subscription.seek(topic.at(0), 2)
        await abort(topic, 1)
        await wait_behind(subscription, topic, 4)
        assert group.committed[topic.at(0)].offset == 1
        await subscription.commit()
        assert group.committed[topic.at(0)].offset == 4


async def test_on_leaving_the_last_move_is_committed(
    monkeypatch: pytest.MonkeyPatch,
    broker: MemoryBroker,
    connector: MemoryConnector,
    topic: CoordinatedTopic,
):
    """However soon after."""
    monkeypatch.setattr(commits, "MOVED_S", 1e6)
    await topic.write(0, None)
    async with subscribe(connector) as subscription:
        await take(subscription)
        await subscription.commit()
        await abort(topic, 1)
        await wait_behind(subscription, topic, 3)
    assert broker.group("billing").committed[topic.at(0)].offset == 3
