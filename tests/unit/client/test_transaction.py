"""Transactions of an application on the memory broker, with a real coordinator."""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.coordinator.transactions import AddPartitions, Open
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_LOG, TXN_RESPONSES
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_client import (
    TOPICS,
    markers_in,
    requests_in,
    visible,
    written,
)
from tests.support.coordinator.worker_memory import MemoryWorker, until


async def test_leaving_the_block_commits(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """Records of a committed transaction are visible; its header stands before their own."""
    async with client.transaction() as txn:
        await txn.send("orders", b"o", key=b"1", headers=[("trace", b"t")])
        await txn.send("payments", None, key=b"1")
    assert txn.state == "committed"
    assert txn.id is not None
    assert written(broker, "orders")[0][2] == [(TXN, txn.id.to_bytes()), ("trace", b"t")]
    assert await visible(connector) == {("orders", b"o"): 1, ("payments", None): 1}


async def test_an_exception_aborts_and_passes(
    connector: MemoryConnector, client: TransactionClient
):
    """What leaves the block is the application's own error, and nothing becomes visible."""
    with pytest.raises(KeyError, match="theirs"):
        async with client.transaction() as txn:
            await txn.send("orders", b"o")
            await txn.flush()
            raise KeyError("theirs")
    assert txn.state == "aborted"
    assert await visible(connector) == {}


async def test_an_abort_hides_every_record(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """An abort in the middle of a block is final; leaving the block adds nothing."""
    async with client.transaction() as txn:
        for number in range(10):
            await txn.send("orders", b"%d" % number, key=b"%d" % number)
        await txn.flush()
        await txn.abort()
    assert (txn.state, len(written(broker, "orders"))) == ("aborted", 10)
    assert await visible(connector) == {}


async def test_an_empty_transaction_asks_nobody(broker: MemoryBroker, client: TransactionClient):
    """Without a record there is nothing to decide: no request is sent, on commit or abort."""
    async with client.transaction() as txn:
        pass
    async with client.transaction() as other:
        await other.abort()
    assert (txn.state, other.state, txn.id) == ("committed", "aborted", None)
    assert requests_in(broker) == []


async def test_a_commit_that_waits_finds_its_markers(
    broker: MemoryBroker, client: TransactionClient
):
    """C5: with `wait_visible` the outcome can be known by readers when commit returns."""
    async with client.transaction() as txn:
        await txn.send("orders", b"o", partition=0)
        await txn.send("orders", b"p", partition=0)
        await txn.commit(wait_visible=True)
    (marker,) = markers_in(broker)
    assert (marker.txn, marker.committed) == (txn.id, True)
    assert (marker.start_offset, marker.end_offset, marker.record_count) == (0, 2, 2)


async def test_partitions_are_registered_from_their_end(
    broker: MemoryBroker, client: TransactionClient
):
    """C2: the start offset is an end offset known before, and follows the client's own writes."""
    for _ in range(3):
        async with client.transaction() as txn:
            await txn.send("orders", b"o", partition=1)
    opened = [it.body for it in requests_in(broker) if isinstance(it.body, Open)]
    assert [[one.start_offset for one in it.partitions] for it in opened] == [[0], [1], [2], [3]]


async def test_a_record_leaves_only_after_its_partition_is_registered(
    broker: MemoryBroker, client: TransactionClient
):
    """C2, D6: while the registration is under way its records wait, and keep their order."""
    broker.hold(TXN_RESPONSES)
    async with client.transaction() as txn:
        for number in range(5):
            await txn.send("orders", b"%d" % number, partition=0)
        await until(lambda: requests_in(broker))
        assert written(broker, "orders") == []
        broker.release()
        await txn.flush()
        values = [value for _, value, _ in written(broker, "orders")]
    assert values == [b"%d" % number for number in range(5)]


async def test_partitions_met_while_one_is_registered_are_registered_together(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """One request is under way at a time; what gathers meanwhile goes with the next."""
    async with client.transaction() as txn:
        broker.hold(TXN_RESPONSES)
        await txn.send("orders", b"first", partition=0)
        await until(lambda: requests_in(broker))
        await txn.send("orders", b"second", partition=1)
        await txn.send("payments", b"third", partition=2)
        broker.release()
        await txn.send("orders", b"fourth", partition=0)
    added = [it.body for it in requests_in(broker) if isinstance(it.body, AddPartitions)]
    assert [len(it.partitions) for it in added] == [2]
    assert sum((await visible(connector)).values()) == 4


async def test_a_report_without_offset_commits(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """C3: a durable record at an unknown offset lies below an end offset read after it."""
    broker.append(TopicPartition("orders", 0), None, b"before", None)
    broker.reports.hide_offset("orders")
    async with client.transaction() as txn:
        await txn.send("orders", b"somewhere", partition=0)
        await txn.commit(wait_visible=True)
    (marker,) = markers_in(broker)
    assert (marker.committed, marker.end_offset, marker.record_count) == (True, 2, 1)
    assert (await visible(connector))["orders", b"somewhere"] == 1


async def test_records_without_key_stay_together(broker: MemoryBroker, client: TransactionClient):
    """Without key a transaction has one partition of a topic, and the next one another."""
    used: list[set[TopicPartition]] = []
    for _ in range(3):
        async with client.transaction() as txn:
            used.append({await txn.send("orders", b"o") for _ in range(4)})
    assert [len(it) for it in used] == [1, 1, 1]
    assert len(set.union(*used)) == 3


async def test_delivered_counts_what_is_durable(client: TransactionClient):
    """Counts are by partition, and stay when the transaction aborts."""
    async with client.transaction() as txn:
        for number in (0, 0, 2):
            await txn.send("orders", b"o", partition=number)
        await txn.flush()
        await txn.abort()
    assert txn.delivered == {TopicPartition("orders", 0): 2, TopicPartition("orders", 2): 1}


async def test_several_may_wait_for_delivery(broker: MemoryBroker, client: TransactionClient):
    """Every waiting `flush` returns, also when another was cancelled."""
    async with client.transaction() as txn:
        await txn.send("orders", b"first", partition=0)
        await txn.flush()
        broker.hold("orders")
        await txn.send("orders", b"second", partition=0)
        flushing = [asyncio.create_task(txn.flush()) for _ in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        flushing[0].cancel()
        broker.release()
        await asyncio.wait_for(asyncio.gather(*flushing[1:]), 10)


async def test_several_tasks_may_send(connector: MemoryConnector, client: TransactionClient):
    """Sends of one transaction may overlap."""
    async with client.transaction() as txn:
        sends = (
            txn.send(topic, b"%d" % number, key=b"%d" % number)
            for number in range(200)
            for topic in TOPICS
        )
        await asyncio.gather(*sends)
    found = await visible(connector)
    assert len(found) == 400
    assert set(found.values()) == {1}


async def test_thousands_are_open_at_once(
    broker: MemoryBroker, connector: MemoryConnector, client: TransactionClient
):
    """Concurrent transactions share log entries, end each by itself, and none is mixed up."""

    async def one(number: int) -> None:
        async with client.transaction() as txn:
            for topic in TOPICS:
                await txn.send(topic, b"%d" % number, key=b"%d" % number)
            if number % 10 == 0:
                await txn.abort()

    await asyncio.gather(*(one(number) for number in range(2000)))
    expected = {(topic, b"%d" % it) for it in range(2000) if it % 10 for topic in TOPICS}
    assert set(await visible(connector)) == expected
    entries = sum(len(broker.records(TopicPartition(TXN_LOG, it))) for it in range(2))
    assert entries < 1000, "6000 requests have shared entries"


async def test_no_more_are_open_than_allowed(connector: MemoryConnector, worker: MemoryWorker):
    """Entering one more waits until another has ended, however it ended."""
    async with TransactionClient(connector=connector, open_transactions_max=2) as client:
        first, second = client.transaction(), client.transaction()
        await first.__aenter__()
        await second.__aenter__()
        third = asyncio.create_task(client.transaction().__aenter__())
        for _ in range(3):
            await asyncio.sleep(0)
        assert not third.done()
        await first.__aexit__(None, None, None)
        await asyncio.wait_for(third, 10)
