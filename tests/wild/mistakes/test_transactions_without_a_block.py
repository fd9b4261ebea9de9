"""`abort()` of a transaction without `async with` never gave its acknowledged messages back.

A program whose framework leaves no room for a block calls `commit` and `abort` itself. Only the end
of the block told the subscription, so the messages stayed claimed until the program was restarted.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.pipeline.client import Message, Subscription, TransactionClient
from stilltide.pipeline.client.transaction import Transaction
from stilltide.pipeline.errors import (
    OtherClusterError,
    OutcomeUnknownError,
    RefusedError,
    TransactionStateError,
)
from stilltide.pipeline.testing.cluster import MemoryCluster


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with one order."""
    async with MemoryCluster({"orders": 1, "bills": 1}) as cluster:
        cluster.append("orders", b"order")
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[TransactionClient]:
    """A client that may have one open transaction, and gives a request up soon."""
    async with TransactionClient(
        connector=cluster.connector, open_transactions_max=1, request_timeout_s=0.3
    ) as client:
        yield client


@pytest.fixture
async def orders(cluster: MemoryCluster) -> AsyncIterator[Subscription]:
    """A subscription whose messages come again soon."""
    async with Subscription(
        ["orders"],
        group="billing",
        connector=cluster.connector,
        acknowledgements=True,
        redelivery_delay_s=0.01,
    ) as orders:
        yield orders


async def _acknowledged(client: TransactionClient, orders: Subscription) -> Transaction:
    """A transaction without a block that has acknowledged the order and written a bill."""
    message = await anext(orders)
    txn = client.transaction()
    await txn.acknowledge(orders, message)
    await txn.send("bills", b"bill")
    return txn


async def _comes_again(orders: Subscription) -> Message:
    async with asyncio.timeout(30):
        message = await anext(orders)
    assert (message.value, message.deliveries) == (b"order", 2)
    return message


async def test_an_abort_gives_messages_back(
    client: TransactionClient, orders: Subscription
) -> None:
    """The message comes again, and the client may open its next transaction."""
    txn = await _acknowledged(client, orders)
    await txn.abort()
    message = await _comes_again(orders)
    async with client.transaction() as following:  # the only one that may be open
        await following.acknowledge(orders, message)


async def test_a_commit_that_fails_gives_messages_back(
    cluster: MemoryCluster, client: TransactionClient, orders: Subscription
) -> None:
    """A record that was not delivered aborts the transaction, outside of a block as well."""
    txn = await _acknowledged(client, orders)
    await txn.flush()
    cluster.broker.reports.lose("bills")
    await txn.send("bills", b"lost")
    with pytest.raises(Exception, match="no answer"):
        await txn.commit()
    assert txn.state == "aborted"
    await _comes_again(orders)


async def test_a_commit_that_is_refused_gives_messages_back(
    client: TransactionClient, orders: Subscription
) -> None:
    """The coordinator has aborted the transaction at its time-out."""
    message = await anext(orders)
    txn = client.transaction(timeout_s=0.05)
    await txn.acknowledge(orders, message)
    await txn.send("bills", b"bill")
    await txn.flush()
    assert txn.id is not None
    async with asyncio.timeout(30):
        while await client.outcome(txn.id) == "open":
            pass
    with pytest.raises(RefusedError):
        await txn.commit()
    await _comes_again(orders)


async def test_a_commit_without_an_answer_gives_up_its_place(
    cluster: MemoryCluster, client: TransactionClient, orders: Subscription
) -> None:
    """A transaction of unknown outcome does not keep the client from its next one."""
    txn = await _acknowledged(client, orders)
    await txn.flush()
    cluster.broker.hold("stilltide.txn-requests")
    with pytest.raises(OutcomeUnknownError):
        await txn.commit()
    cluster.broker.release()
    assert txn.state == "unknown"
    following = client.transaction()
    await following.send("bills", b"following")
    await following.commit()


async def test_an_end_is_told_once(client: TransactionClient, orders: Subscription) -> None:
    """After an abort inside of a block, the end of the block changes nothing."""
    message = await anext(orders)
    async with client.transaction() as txn:
        await txn.acknowledge(orders, message)
        await txn.abort()
        message = await _comes_again(orders)
        async with client.transaction() as following:
            await following.acknowledge(orders, message)
    with pytest.raises(TransactionStateError):
        await txn.abort()
    first, second = client.transaction(), client.transaction()
    await first.send("bills", b"first")
    waiting = asyncio.ensure_future(second.send("bills", b"second"))
    await asyncio.sleep(0)
    assert not waiting.done()  # one place was given back for each end, not two
    await first.commit()
    await waiting
    await second.commit()


async def test_a_transaction_refuses_a_message_of_another_cluster(
    client: TransactionClient,
) -> None:
    """Two clusters of a test have ids of their own, as two real clusters have."""
    async with MemoryCluster({"orders": 1}) as other:
        other.append("orders", b"order")
        async with Subscription(
            ["orders"], group="billing", connector=other.connector, acknowledgements=True
        ) as elsewhere:
            message = await anext(elsewhere)
            txn = client.transaction()
            with pytest.raises(OtherClusterError):
                await txn.acknowledge(elsewhere, message)
            await txn.abort()
