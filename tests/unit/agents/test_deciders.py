"""The resolvers of a worker: coordinators of a cluster in memory, a database of SQLite."""

import asyncio
from pathlib import Path

from pydantic import SecretStr

from stilltide import TransactionClient
from stilltide.pipeline.agents.deciders import REST_MS, resolve_prepared
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.schemas.decisions import DDL
from stilltide.testing import MemoryCluster
from tests.support.databases.resolving import decider_of, execute, prepared
from tests.support.looks import between_looks


async def test_resolvers_that_rest_are_woken_by_the_coordinators_of_their_worker(tmp_path: Path):
    """L6: each transaction is resolved long before the next round would be due."""
    path = str(tmp_path / "orders.sqlite")
    for statement in DDL["sqlite"]:
        execute(path, statement)
    settings = Settings(deciders=SecretStr(f"orders-db=sqlite:///{path}"), resolve_after_ms=0)
    async with (
        MemoryCluster({"orders": 1}) as cluster,
        TransactionClient(connector=cluster.connector) as client,
    ):
        owners = cluster._worker.owners.coordinators.owners
        resolving = asyncio.create_task(resolve_prepared(settings, cluster.connector, owners))
        async with asyncio.timeout(REST_MS / 2000):
            for _ in range(2):
                txn = await prepared(client, decider_of(path))
                assert owners[0].deciders == {decider_of(path)}
                while await client.outcome(txn) != "aborted":
                    await between_looks()
            while owners[0].deciders:
                await between_looks()
        await cancelled(resolving)
