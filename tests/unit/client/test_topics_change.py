"""C13, C14: partitions, topics and coordinators change under a client that stays open."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from stilltide import TopicRecreatedError
from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.pipeline.core.partitioner import partition_for
from stilltide.pipeline.drivers.service.ask.requests import home_of
from stilltide.schemas.coordinator.transactions import Release
from stilltide.schemas.topics import TXN_REQUESTS, TopicSpec
from stilltide.schemas.values import TopicPartition, TxnId
from tests.support.coordinator.worker_client import markers_in, requests_in, visible, written
from tests.support.coordinator.worker_memory import MemoryWorker, until

AGE_S = 0.05
NEVER_S = 3600.0


def client_of(connector: MemoryConnector, age_s: float) -> TransactionClient:
    """A client that looks at topics at this age."""
    return TransactionClient(connector=connector, metadata_max_age_s=age_s)


def ids_of(broker: MemoryBroker) -> bytes:
    """The id of the topic."""
    return broker.topics["orders"].description.topic_id


def create_again(broker: MemoryBroker, partitions: int = 3) -> tuple[bytes, bytes]:
    """Deletes the topic and creates another of its name; returns both ids."""
    before = ids_of(broker)
    broker.delete_topic("orders")
    broker.create_topic(TopicSpec("orders", partitions))
    return before, ids_of(broker)


async def test_an_added_partition_is_used_after_the_age(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """Keys go by the new count; a transaction that began before keeps the count it began with."""
    key = next(b"%d" % n for n in range(99) if partition_for(b"%d" % n, 9, 0) >= 3)
    async with client_of(connector, AGE_S) as client:
        async with client.transaction() as early:
            first = await early.send("orders", b"1", key=key)
            broker.add_partitions("orders", 9)
            assert client._cluster is not None
            topics = client._cluster.topics
            await until(lambda: (known := topics.get("orders")) and known.partition_count == 9)
            assert await early.send("orders", b"2", key=key) == first
        async with client.transaction() as late:
            assert (await late.send("orders", b"3", key=key)).partition >= 3
    assert await visible(connector) == {("orders", b"%d" % n): 1 for n in (1, 2, 3)}


async def test_an_unknown_partition_is_looked_for_at_once(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """C13: a partition given by the caller is found without waiting for the age; else refused."""
    async with client_of(connector, NEVER_S) as client, client.transaction() as txn:
        await txn.send("orders", b"1", partition=2)
        with pytest.raises(FatalError, match=r"partition 3 is not in 0\.\.2"):
            await txn.send("orders", b"2", partition=3)
        broker.add_partitions("orders", 5)
        assert await txn.send("orders", b"3", partition=4) == TopicPartition("orders", 4)
        with pytest.raises(FatalError, match=r"partition -1 is not in 0\.\.4"):
            await txn.send("orders", b"4", partition=-1)
    assert await visible(connector) == {("orders", b"1"): 1, ("orders", b"3"): 1}


@pytest.mark.parametrize("partitions", [3, 1])
async def test_a_topic_created_again_fails_what_wrote_to_the_former_one(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker, partitions: int
):
    """C13: the error names the topic and both ids; others go on, and the next transaction works."""
    async with client_of(connector, AGE_S) as client:
        other = client.transaction()
        failing = client.transaction()
        before = now = b""
        async with other:
            await other.send("payments", b"p", partition=0)
            with pytest.raises(TopicRecreatedError) as caught:
                async with failing:
                    await failing.send("orders", b"lost", partition=0)
                    await failing.send("payments", b"lost", partition=1)
                    await failing.flush()
                    before, now = create_again(broker, partitions)
                    await until(lambda: failing._machine.failure)
                    with pytest.raises(TopicRecreatedError):
                        await failing.send("payments", b"more", partition=1)
            assert caught.value.topic == "orders"
            assert before.hex() in caught.value.detail
            assert now.hex() in caught.value.detail
        async with client.transaction() as txn:
            await txn.send("orders", b"next", key=b"k")
    assert (failing.state, other.state, txn.state) == ("aborted", "committed", "committed")
    assert await visible(connector) == {("payments", b"p"): 1, ("orders", b"next"): 1}
    marker = next(it for it in markers_in(broker) if it.txn == txn.id)
    assert marker.topic_id == now


async def test_a_refusal_has_the_client_look_at_once(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """C13: counts of the new topic cannot be true of the former one; the cause is named."""
    async with client_of(connector, NEVER_S) as client:
        async with client.transaction() as txn:
            for _ in range(5):
                await txn.send("orders", b"old", partition=0)
        create_again(broker)
        failing = client.transaction()
        with pytest.raises(TopicRecreatedError):
            async with failing:
                await failing.send("orders", b"lost", partition=0)
        async with client.transaction() as txn:
            await txn.send("orders", b"next", partition=0)
    assert failing.state == "aborted"
    assert await visible(connector) == {("orders", b"next"): 1}


async def test_transactions_opened_ahead_are_given_up_with_their_topic(
    broker: MemoryBroker, connector: MemoryConnector, worker: MemoryWorker
):
    """C9, C13: a stock that is registered with the former topic is released, not used."""
    async with client_of(connector, AGE_S) as client:
        for number in range(3):
            async with client.transaction() as txn:
                await txn.send("orders", b"%d" % number, partition=0)
        _, now = create_again(broker)
        await until(lambda: any(isinstance(it.body, Release) for it in requests_in(broker)))
        async with client.transaction() as txn:
            await txn.send("orders", b"next", partition=0)
    marker = next(it for it in markers_in(broker) if it.txn == txn.id)
    assert (marker.topic_id, marker.committed) == (now, True)


@asynccontextmanager
async def moving_client(connector: MemoryConnector) -> AsyncIterator[TransactionClient]:
    """A client whose coordinator is 0 of 1, and another one of 3."""
    while True:
        async with client_of(connector, AGE_S) as client:
            assert client._cluster is not None
            if home_of(client._cluster._requests.client_id, 3) != 0:
                yield client
                return


async def one(client: TransactionClient, value: bytes) -> TxnId:
    """The id of a transaction of one record."""
    async with client.transaction() as txn:
        await txn.send("orders", value, partition=0)
    assert txn.id is not None
    return txn.id


async def test_added_coordinators_open_new_transactions(
    broker: MemoryBroker, connector: MemoryConnector
):
    """C14: a transaction ends at the coordinator that opened it, also if workers are replaced."""
    async with AsyncExitStack() as stack:
        few = await stack.enter_async_context(MemoryWorker(connector, coordinators=1))
        client = await stack.enter_async_context(moving_client(connector))
        for number in range(3):
            assert (await one(client, b"%d" % number)).coordinator == 0
        async with client.transaction() as txn:
            await txn.send("orders", b"across", partition=0)
            await txn.flush()
            await few.__aexit__(None, None, None)
            await stack.enter_async_context(MemoryWorker(connector, coordinators=3))
            cluster = client._cluster
            assert cluster is not None
            await until(lambda: cluster.coordinator != 0)
            await txn.send("orders", b"across", partition=0)
        assert txn.id is not None
        assert txn.id.coordinator == 0
        moved = [await one(client, b"%d" % number) for number in range(3, 6)]
        assert {it.coordinator for it in moved} == {cluster.coordinator}
        assert await visible(connector) == {
            **{("orders", b"%d" % number): 1 for number in range(6)},
            ("orders", b"across"): 2,
        }
    assert len(broker.topics[TXN_REQUESTS].logs) == 3
    assert len(written(broker, "orders")) == 8
