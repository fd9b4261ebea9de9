"""`stilltide.testing`: what tests of applications run on."""

import pytest

from stilltide import RetriableError, Subscription, TransactionClient
from stilltide.testing import MemoryCluster, SyncMemoryCluster


async def test_a_cluster_in_the_process_runs_transactions():
    """Committed records are seen, aborted ones are not, and acknowledgements work."""
    async with (
        MemoryCluster({"orders": 3}) as cluster,
        TransactionClient(connector=cluster.connector) as client,
        Subscription(
            "orders", group="billing", connector=cluster.connector, acknowledgements=True
        ) as orders,
    ):
        cluster.create_topic("invoices")
        cluster.append("orders", b"plain", key=b"k", headers=[("id", b"1")], partition=2)
        async with client.transaction() as txn:
            message = await anext(orders)
            await txn.acknowledge(orders, message)
            await txn.send("invoices", b"invoice of " + (message.value or b""))
        async with client.transaction() as txn:
            await txn.send("invoices", b"hidden")
            await txn.abort()
        assert [it.value for it in await cluster.committed("invoices")] == [b"invoice of plain"]
        assert [it.partition for it in await cluster.committed("orders")] == [2]
        assert await cluster.committed("invoices"), "looked at again"


async def test_a_broker_can_be_taken_down():
    """An application's own handling of an absent cluster can be tested."""
    async with MemoryCluster({"orders": 1}) as cluster:
        cluster.broker.down()
        with pytest.raises(RetriableError):
            async with TransactionClient(connector=cluster.connector):
                pass
        cluster.broker.up()


def test_the_same_for_programs_without_an_event_loop():
    """Its broker is on the event loop of `stilltide.sync`."""
    with SyncMemoryCluster() as cluster:
        cluster.create_topic("orders", 2)
        cluster.append("orders", b"o", partition=1)
        assert [it.value for it in cluster.committed("orders")] == [b"o"]
        cluster.down()
        with pytest.raises(RetriableError):
            cluster.append("orders", b"lost")
        cluster.up()
        assert len(cluster.committed("orders")) == 1
