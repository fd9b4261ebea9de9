"""A subscription beside coordinators and snapshot writers, on the memory broker (D4, D5, E7)."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client.subscription import Subscription
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.subscription.options import SubscriptionOptions
from stilltide.pipeline.drivers.subscription.subscription import SubscriptionDriver
from stilltide.schemas.topics import TXN_SNAPSHOTS, TopicSpec
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.coordinator.worker_memory import PARTITIONS, MemoryWorker, until
from tests.support.snapshots.client import SnapshotClient, snapshot_client

ORDERS = TopicPartition("orders", 0)

pytestmark = pytest.mark.topics(TopicSpec(ORDERS.topic, 1))
ON_REQUEST = SnapshotLimits(changes_max=1_000_000, interval_ms=600_000, part_bytes_max=30)
ORPHAN = TxnId(0, 77)


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[SnapshotClient]:
    """Who writes to the data partition; a worker takes snapshots on request only."""
    connector = MemoryConnector(broker)
    async with (
        MemoryWorker(connector, coordinators=2, snapshots=ON_REQUEST),
        snapshot_client(connector, ORDERS, partitions=PARTITIONS) as made,
    ):
        yield made


async def test_a_subscription_needs_no_marker_that_a_snapshot_has_absorbed(
    broker: MemoryBroker, client: SnapshotClient
):
    """D4, D5: it begins with the snapshot, goes on with markers, and takes up the next snapshot."""
    for number in range(20):
        await client.aborted(number % 2)
    first = await client.committed()
    await client.take()
    broker.topics[TXN_SNAPSHOTS].compact()
    assert await client.outcomes() == []
    async with Subscription(["orders"], group="billing", connector=client.connector) as orders:
        assert (await anext(orders)).txn == first.txn
        counts = orders.statistics()[ORDERS]
        assert (counts.hidden, counts.outcomes) == (20, 0)
        second, third = await client.write(0), await client.write(1)
        await client.end(third, committed=True)
        await client.end(second, committed=True)
        assert [(await anext(orders)).txn for _ in range(2)] == [second.txn, third.txn]
        assert orders.statistics()[ORDERS].outcomes == 2
        await client.take()
        await until(lambda: orders.statistics()[ORDERS].outcomes == 0)


async def test_an_orphan_is_decided_by_the_snapshot_that_the_reader_asks_for(
    client: SnapshotClient,
):
    """D2, E7: no marker will ever come of it; what is behind it waits no longer than this."""
    await client.append(ORPHAN)
    behind = await client.committed()
    options = SubscriptionOptions(["orders"], "billing", ask_after_s=0.02)
    driver = SubscriptionDriver(client.connector, options)
    await driver.start()
    await until(lambda: len(driver.next_queue()) == 2)
    assert [it.txn for it in driver.next_queue()] == [ORPHAN, behind.txn]
    await driver.close()
