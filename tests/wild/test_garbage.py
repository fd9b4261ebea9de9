"""Programs that became slower with each version: what had ended was left to the garbage collector.

A user saw the client take a tenth more of the processor and of memory. Objects that refer to each
other stay until the collector comes, which looks at all that young objects refer to.
"""

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from stilltide import Subscription, TransactionClient
from stilltide.schemas.values import TopicPartition
from stilltide.testing import MemoryCluster

TIMES = 20


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with records to read, and a topic to write to."""
    async with MemoryCluster({"orders": 1, "payments": 3}) as cluster:
        for number in range(3 * TIMES):
            cluster.append("orders", b"%d" % number)
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[TransactionClient]:
    """A client."""
    async with TransactionClient(connector=cluster.connector) as client:
        yield client


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector runs only when it is called."""
    gc.disable()
    yield
    gc.enable()


async def _garbage(use: Callable[[], Awaitable[object]]) -> float:
    """Objects that each of many uses leaves to the collector; the first uses fill caches."""
    for _ in range(TIMES):
        await use()
    gc.collect()
    for _ in range(TIMES):
        await use()
    return gc.collect() / TIMES


async def test_a_commit_leaves_no_garbage(client: TransactionClient, collector: None):
    """A transaction goes when the application drops it."""

    async def use() -> None:
        async with client.transaction() as txn:
            for partition in range(3):
                await txn.send("payments", b"p", partition=partition)

    assert await _garbage(use) < 1


async def test_an_abort_leaves_no_garbage(client: TransactionClient, collector: None):
    """A transaction whose records were delivered before it aborted goes as one that committed."""

    async def use() -> None:
        async with client.transaction() as txn:
            await txn.send("payments", b"p", partition=0)
            await txn.flush()
            await txn.abort()

    assert await _garbage(use) < 1


async def test_a_transaction_that_is_never_used_leaves_no_garbage(
    client: TransactionClient, collector: None
):
    """A transaction that was only made goes, too."""

    async def use() -> None:
        client.transaction()

    assert await _garbage(use) < 1


async def test_acknowledging_leaves_no_garbage(
    cluster: MemoryCluster, client: TransactionClient, collector: None
):
    """Neither the message nor the transaction that acknowledges it stays."""
    async with Subscription(
        "orders", group="g", connector=cluster.connector, acknowledgements=True
    ) as messages:

        async def use() -> None:
            async with client.transaction() as txn:
                await txn.acknowledge(messages, await anext(aiter(messages)))
                await txn.send("payments", b"p", partition=0)

        assert await _garbage(use) < 1


async def test_reading_leaves_no_garbage(cluster: MemoryCluster, collector: None):
    """A record goes when the application drops it."""
    async with Subscription("orders", group="g", connector=cluster.connector) as messages:

        async def use() -> None:
            await anext(aiter(messages))

        assert await _garbage(use) < 1


async def test_what_was_delivered_is_known_after_the_end(client: TransactionClient):
    """Counts of durable records outlive the transaction, whatever its outcome."""
    async with client.transaction() as committed:
        await committed.send("payments", b"p", partition=1)
    async with client.transaction() as aborted:
        await aborted.send("payments", b"p", partition=2)
        await aborted.flush()
        await aborted.abort()
    assert committed.delivered == {TopicPartition("payments", 1): 1}
    assert aborted.delivered == {TopicPartition("payments", 2): 1}
