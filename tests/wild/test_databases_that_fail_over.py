"""Databases whose connections lead, after a fail-over, to a server that takes no writes any more.

A user of another pool saw `cannot execute INSERT in a read-only transaction` for half an hour: the
former primary had come back as a replica, behind a proxy that keeps connections, and the pool went
on using those that it had.
"""

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from stilltide import RetriableError
from stilltide.connectors.databases.table import THREADS, DatabaseTable
from stilltide.databases import Decisions
from tests.support.databases.postgres import PostgresServer

ROLE = "resolver"


class FailingOver:
    """Sessions of a role that begin while it is a replica's take no writes, until they end."""

    def __init__(self, db: psycopg.AsyncConnection, address: str) -> None:
        self._db = db
        self.address = address

    async def be(self, *, replica: bool) -> None:
        """What sessions that begin from now on lead to."""
        statement = sql.SQL("ALTER ROLE {} SET default_transaction_read_only = {}")
        await self._db.execute(statement.format(sql.Identifier(ROLE), "on" if replica else "off"))


@pytest.fixture
async def server(postgres: PostgresServer) -> AsyncIterator[FailingOver]:
    """A server with a table of decisions, which the role may use."""
    address = make_url(postgres.conninfo).set(drivername="postgresql")
    shown = address.render_as_string(hide_password=False)
    role = address.set(username=ROLE).render_as_string(hide_password=False)
    name = sql.Identifier(ROLE)
    async with (
        await psycopg.AsyncConnection.connect(postgres.conninfo, autocommit=True) as db,
        Decisions("orders-db", shown) as decisions,
    ):
        await db.execute("DROP TABLE IF EXISTS stilltide_decisions")
        await decisions.create_table(db)
        await db.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        grant = sql.SQL("GRANT SELECT, INSERT, DELETE ON stilltide_decisions TO {}")
        await db.execute(grant.format(name))
        yield FailingOver(db, role)
        await db.execute(sql.SQL("DROP OWNED BY {}").format(name))
        await db.execute(sql.SQL("DROP ROLE {}").format(name))


async def test_a_database_that_has_failed_over_decides_at_once(server: FailingOver):
    """All connections of the pool lead to the replica; the first decision finds the primary."""
    await server.be(replica=True)
    table = DatabaseTable("orders-db", server.address)
    identity, *_ = await asyncio.gather(*(table.identity() for _ in range(THREADS)))
    await server.be(replica=False)
    keys = [f"c/0:{number}/aa" for number in range(2 * THREADS)]
    decided = await asyncio.gather(*(table.decide(key, identity) for key in keys))
    assert decided == [False] * len(keys)
    await table.close()


async def test_rows_are_deleted_after_a_fail_over(server: FailingOver):
    """Also if nothing had to be decided."""
    table = DatabaseTable("orders-db", server.address)
    identity = await table.identity()
    assert not await table.decide("c/0:1/aa", identity)
    await table.close()
    await server.be(replica=True)
    assert await table.rows("", "c/", 9) == ["c/0:1/aa"]
    await server.be(replica=False)
    await table.delete(["c/0:1/aa"])
    assert await table.rows("", "c/", 9) == []
    await table.close()


async def test_a_replica_is_called_so(server: FailingOver):
    """Nothing is decided, and the error says what the address has to be."""
    await server.be(replica=True)
    table = DatabaseTable("orders-db", server.address)
    identity = await table.identity()
    with pytest.raises(RetriableError, match="orders-db takes no writes") as failure:
        await table.decide("c/0:1/aa", identity)
    assert "the server that takes writes" in str(failure.value)
    assert await table.rows("", "c/", 9) == []
    await table.close()
