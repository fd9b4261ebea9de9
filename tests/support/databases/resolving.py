"""What is seen of a cluster in memory, what is left prepared there, and a resolver of it."""

import sqlite3
from collections.abc import Callable

from stilltide import TransactionClient
from stilltide.connectors.databases.table import DatabaseTable
from stilltide.databases import Decisions
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import DecisionResolver, UnendedTransactions
from stilltide.schemas.coordinator.prepared_tokens import hash_of
from stilltide.schemas.coordinator.transactions import Prepare, Written
from stilltide.schemas.decisions import IDENTITY_QUERY, Decider
from stilltide.schemas.values import EndOffset, Offset, TxnId
from stilltide.testing import MemoryCluster

SECRET = bytes(32)
"""Of the transactions that are left prepared."""

Deciding = Callable[[str], Decisions]
"""`Decisions` of the database of a kind of connection; closed with the test."""


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
        await resolver.once()
    await table.close()


def execute(path: str, statement: str, *values: str) -> list[tuple[str, ...]]:
    """Runs a statement in a transaction of its own."""
    db = sqlite3.connect(path)
    with db:
        rows = db.execute(statement, values).fetchall()
    db.close()
    return rows


def decider_of(path: str) -> str:
    """What `Prepare` records of the database."""
    return str(Decider("orders-db", execute(path, IDENTITY_QUERY)[0][0]))


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
