"""A row in a real database and records of a transaction: both or neither."""

from contextlib import suppress

import pytest

from stilltide import TransactionClient
from stilltide.sync import Decisions as SyncDecisions
from stilltide.sync import TransactionClient as SyncTransactionClient
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.databases.kinds import BLOCKING, KINDS, Place
from tests.support.databases.resolving import Deciding, resolve, values


@pytest.mark.parametrize("kind", KINDS)
async def test_the_block_commits_what_the_database_has_committed(
    kind: str, place: Place, cluster: MemoryCluster, decisions_of: Deciding
):
    """Leaving both blocks makes the record visible; an exception between leaves neither."""
    decisions = decisions_of(kind)
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    async with TransactionClient(connector=cluster.connector) as client:
        async with client.transaction() as txn, KINDS[kind](place, True) as db:
            await txn.send("orders", b"both")
            await decisions.enlist(txn, db)
        with suppress(ZeroDivisionError):
            async with client.transaction() as txn, KINDS[kind](place, True) as db:
                await txn.send("orders", b"neither")
                await decisions.enlist(txn, db)
                raise ZeroDivisionError
        assert txn.state == "aborted"
    assert await values(cluster) == [b"both"]


async def test_a_client_that_dies_after_the_database_has_committed(
    place: Place, cluster: MemoryCluster, decisions_of: Deciding
):
    """The resolver commits as the row says."""
    decisions = decisions_of("asyncpg")
    async with KINDS["asyncpg"](place, True) as db:
        await decisions.create_table(db)
    async with TransactionClient(connector=cluster.connector) as client:
        txn = client.transaction()
        await txn.send("orders", b"both")
        async with KINDS["asyncpg"](place, True) as db:
            await decisions.enlist(txn, db)
        assert await client.outcome(txn.id) == "prepared"
    await resolve(cluster, place.server.conninfo)
    assert await values(cluster) == [b"both"]


@pytest.mark.parametrize("kind", BLOCKING)
async def test_programs_without_an_event_loop(kind: str, place: Place):
    """`stilltide.sync` has the same blocks."""
    with (
        SyncDecisions("orders-db", place.address(kind)) as decisions,
        SyncMemoryCluster({"orders": 1}) as cluster,
        SyncTransactionClient(connector=cluster.connector) as client,
    ):
        async with KINDS[kind](place, True) as db:
            decisions.create_table(db)
        with client.transaction() as txn:
            txn.send("orders", b"both")
            async with KINDS[kind](place, True) as db:
                decisions.enlist(txn, db)
        assert [record.value for record in cluster.committed("orders")] == [b"both"]
