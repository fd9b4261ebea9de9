"""A topic that was deleted and created again could not be read for five minutes.

Every `Subscription` that was opened ended with `TopicRecreatedError`, until somebody wrote a
transaction to the very partition whose snapshot was of the former topic, or the snapshot writer
looked at all partitions again.
"""

import asyncio

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import Subscription, TransactionClient
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.errors import TopicRecreatedError
from stilltide.schemas.topics import TXN_SNAPSHOTS, TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import MemoryWorker

WAIT_S = 60
ORDERS = TopicPartition("orders", 0)


async def read_on(connector: MemoryConnector) -> None:
    """Reads until an error comes."""
    async with (
        asyncio.timeout(WAIT_S),
        Subscription(["orders"], group="billing", connector=connector) as subscription,
    ):
        async for _ in subscription:
            pass


def topic_of_snapshot(broker: MemoryBroker) -> bytes:
    """The id of the topic of the last snapshot."""
    table = SnapshotTable(0)
    for data in broker.partitions([TXN_SNAPSHOTS]):
        for record in broker.records(data):
            table.record_read(record.offset, record.key, record.value)
    return table.ends[ORDERS].topic_id


async def test_a_reader_of_a_topic_created_again_has_its_first_snapshot_taken():
    """The first reader ends, and then the snapshot is of the new topic, so the next one reads."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    connector = MemoryConnector(broker)
    async with MemoryWorker(connector, snapshots=SnapshotLimits()):
        async with (
            TransactionClient(connector=connector, name="shop") as client,
            client.transaction() as txn,
        ):
            await txn.send("orders", b"former", partition=0)
            await txn.abort()
        async with SnapshotLine(connector, "test", timeout_s=WAIT_S) as line:
            await line.take(ORDERS)
        broker.delete_topic("orders")
        broker.create_topic(TopicSpec("orders", 1))
        broker.append(ORDERS, None, b"new", None)
        former = topic_of_snapshot(broker)
        with pytest.raises(TopicRecreatedError):
            await read_on(connector)
        assert topic_of_snapshot(broker) == broker.topics["orders"].description.topic_id != former
