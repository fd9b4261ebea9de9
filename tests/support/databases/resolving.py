"""What is seen of a cluster in memory, and a resolver of it."""

from collections.abc import Callable

from stilltide.connectors.databases.table import DatabaseTable
from stilltide.databases import Decisions
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.drivers.decisions.resolver import DecisionResolver, UnendedTransactions
from stilltide.testing import MemoryCluster

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
        await anext(resolver.rounds())
    await table.close()
