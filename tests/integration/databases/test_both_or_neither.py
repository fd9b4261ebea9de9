"""A row in a real database and records of a transaction: both or neither."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from stilltide import TransactionClient
from stilltide.connectors.databases.table import DatabaseTable
from stilltide.databases import Decisions
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import DecisionResolver, UnendedTransactions
from stilltide.sync import Decisions as SyncDecisions
from stilltide.sync import TransactionClient as SyncTransactionClient
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.databases.kinds import BLOCKING, KINDS, Place

Deciding = Callable[[str], Decisions]


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a topic."""
    async with MemoryCluster({"orders": 1}) as cluster:
        yield cluster


async def values(cluster: MemoryCluster) -> list[bytes | None]:
    """What readers see."""
    return [record.value for record in await cluster.committed("orders")]


async def resolve(cluster: MemoryCluster, address: str) -> None:
    """One round of a resolver."""
    table = DatabaseTable("orders-db", address)
    async with Coordinators(cluster.connector, request_timeout_s=60) as coordinators:
        cluster_id = await cluster.connector.admin().cluster_id()
        unended = UnendedTransactions(
            coordinators, cluster_id, ["orders-db"], cluster.connector.clock
        )
        resolver = DecisionResolver(unended, "orders-db", table, resolve_after_ms=0)
        await anext(resolver.rounds())
    await table.close()


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
