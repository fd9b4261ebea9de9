"""Resolves prepared transactions of a cluster in memory, by rows in SQLite."""

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stilltide import TransactionClient
from stilltide.connectors.databases.table import DatabaseTable
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import DecisionResolver, Resolution
from stilltide.schemas.coordinator.prepared_tokens import hash_of, token_id
from stilltide.schemas.coordinator.transactions import Prepare, Written
from stilltide.schemas.decisions import DDL, commit_statement
from stilltide.schemas.values import EndOffset, Offset, TxnId
from stilltide.testing import MemoryCluster

SECRET = bytes(32)


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a topic."""
    async with MemoryCluster({"orders": 1}) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[TransactionClient]:
    """Writes to the cluster."""
    async with TransactionClient(connector=cluster.connector) as client:
        yield client


@pytest.fixture
def database(tmp_path: Path) -> str:
    """Path of a database with the table."""
    path = str(tmp_path / "orders.sqlite")
    execute(path, DDL["sqlite"])
    return path


def execute(path: str, statement: str, *values: str) -> list[tuple[str, ...]]:
    """Runs a statement in a transaction of its own."""
    db = sqlite3.connect(path)
    with db:
        rows = db.execute(statement, values).fetchall()
    db.close()
    return rows


async def prepared(client: TransactionClient, decider: str) -> TxnId:
    """A transaction with a record that its client has prepared and left behind."""
    txn = client.transaction()
    await txn.send("orders", b"1")
    await txn.flush()
    assert txn.id is not None
    written = [
        Written(data, Offset(it.first), EndOffset(it.end), it.count)
        for data, it in txn._writes.items()
    ]
    body = Prepare(txn.id.sequence, tuple(written), None, hash_of(SECRET), decider)
    assert client._cluster is not None
    await client._cluster.ask(txn.id.coordinator, body)
    return txn.id


async def first_round(
    cluster: MemoryCluster, *databases: tuple[str, str]
) -> tuple[list[Resolution], set[TxnId]]:
    """What a resolver ends in its first round, and what it leaves."""
    tables = {name: DatabaseTable(name, f"sqlite:///{path}") for name, path in databases}
    async with Coordinators(cluster.connector, request_timeout_s=60) as coordinators:
        resolver = DecisionResolver(
            coordinators,
            await cluster.connector.admin().cluster_id(),
            tables,
            cluster.connector.clock,
            resolve_after_ms=0,
        )
        resolved = await anext(resolver.rounds())
    for table in tables.values():
        await table.close()
    return resolved, resolver.waiting


async def name_of(cluster: MemoryCluster, txn: TxnId) -> str:
    """Key of the transaction's row."""
    return token_id(await cluster.connector.admin().cluster_id(), txn, hash_of(SECRET))


async def test_a_row_of_the_application_commits(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L4, L5: the record is visible, and the row is gone."""
    txn = await prepared(client, "orders-db")
    execute(database, commit_statement("?"), await name_of(cluster, txn))
    assert await first_round(cluster, ("orders-db", database)) == (
        [Resolution(txn, "orders-db", committed=True)],
        set(),
    )
    assert [it.value for it in await cluster.committed("orders")] == [b"1"]
    assert execute(database, "SELECT * FROM stilltide_decisions") == []


async def test_without_a_row_the_transaction_aborts(
    cluster: MemoryCluster, client: TransactionClient, database: str
):
    """L4, L5: the record is hidden, and the resolver's own row is gone."""
    txn = await prepared(client, "orders-db")
    assert await first_round(cluster, ("orders-db", database)) == (
        [Resolution(txn, "orders-db", committed=False)],
        set(),
    )
    assert await cluster.committed("orders") == []
    assert execute(database, "SELECT * FROM stilltide_decisions") == []


async def test_unknown_databases_and_those_that_are_away_decide_nothing(
    cluster: MemoryCluster, client: TransactionClient, tmp_path: Path
):
    """L6: the transactions stay prepared; only those of a known database are waited for."""
    await prepared(client, "other-db")
    txn = await prepared(client, "orders-db")
    gone = str(tmp_path / "missing" / "orders.sqlite")
    assert await first_round(cluster, ("orders-db", gone)) == ([], {txn})


async def test_rows_of_strangers_stay(cluster: MemoryCluster, database: str):
    """L5: rows of other clusters, and keys that name no transaction, are left alone."""
    cluster_id = await cluster.connector.admin().cluster_id()
    ended = f"{cluster_id}/0:0/ab"
    names = [ended, f"{cluster_id}/0:x/ab", f"{cluster_id}/", "other/0:0/ab"]
    for name in names:
        execute(database, commit_statement("?"), name)
    await first_round(cluster, ("orders-db", database))
    left = execute(database, "SELECT token_id FROM stilltide_decisions")
    assert {name for (name,) in left} == set(names) - {ended}
