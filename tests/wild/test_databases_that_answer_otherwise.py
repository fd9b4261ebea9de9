"""Databases that answer otherwise than ours do: another encoding, an error of the driver's own.

A user saw the worker end again and again with `TypeError: cannot use a string pattern on a
bytes-like object`: the database that decides had the encoding SQL_ASCII, as `initdb` makes it in
the locale C, and its driver then returns bytes.
"""

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event

from stilltide import RetriableError, TransactionClient
from stilltide.connectors.databases.table import DatabaseTable
from stilltide.databases import Decisions
from stilltide.pipeline.databases.connections import kind_of
from stilltide.testing import MemoryCluster
from tests.support.databases.postgres import PostgresServer

WITHOUT_ENCODING = (
    "CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
)


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    """The address of a database without an encoding."""
    with psycopg.connect(postgres.conninfo, autocommit=True) as db:
        db.execute("DROP DATABASE IF EXISTS ascii WITH (FORCE)")
        db.execute(WITHOUT_ENCODING)
    return postgres.conninfo.replace("/postgres?", "/ascii?")


async def test_a_database_without_an_encoding_decides(database: str):
    """A row and its record are both there; a resolver reads names and identity as text."""
    async with (
        MemoryCluster({"orders": 1}) as cluster,
        TransactionClient(connector=cluster.connector) as client,
        Decisions("orders-db", database) as decisions,
        await psycopg.AsyncConnection.connect(database, autocommit=True) as db,
    ):
        await decisions.create_table(db)
        async with client.transaction() as txn, db.transaction():
            await txn.send("orders", b"both")
            await decisions.enlist(txn, db)
        assert [record.value for record in await cluster.committed("orders")] == [b"both"]
        async with db.transaction():
            await kind_of(db).insert(db, "c/0:1/aa")
    table = DatabaseTable("orders-db", database)
    identity = await table.identity()
    assert [await table.decide(f"c/0:{number}/aa", identity) for number in (1, 2)] == [True, False]
    assert await table.rows("", "c/", 9) == ["c/0:1/aa", "c/0:2/aa"]
    await table.close()


async def test_an_error_of_the_drivers_own(tmp_path: Path):
    """What is no error of SQLAlchemy ends no worker: the database counts as away for now."""
    table = DatabaseTable("orders-db", f"sqlite:///{tmp_path / 'orders.sqlite'}")

    @event.listens_for(table._engine, "do_connect")
    def _(*_: object) -> None:
        raise TypeError("cannot use a string pattern on a bytes-like object")

    with pytest.raises(RetriableError, match="orders-db cannot be asked: TypeError"):
        await table.identity()
    await table.close()
