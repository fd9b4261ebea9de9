"""The table of decisions as resolvers use it, on real databases with real locks."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from stilltide.connectors.databases import table as table_module
from stilltide.connectors.databases.table import THREADS, DatabaseTable
from stilltide.connectors.errors import (
    FatalError,
    NoDecisionsTableError,
    OtherTableError,
    RetriableError,
)
from stilltide.databases import Decisions
from stilltide.pipeline.databases.connections import kind_of
from tests.integration.databases.test_enlist import NotedTransaction
from tests.support.databases.kinds import KINDS, Place, rows

ADDRESSES = ("psycopg", "sqlite3", "alchemy-pymysql")
"""Kinds of connections, one for each database."""


@pytest.fixture(params=ADDRESSES)
async def kind(request: pytest.FixtureRequest, place: Place) -> str:
    """A kind of connection, and a database with the table."""
    async with KINDS[request.param](place, True) as db:
        kind_of(db).create_table(db)
    return request.param


@pytest.fixture
async def table(kind: str, place: Place) -> AsyncIterator[DatabaseTable]:
    """A resolver's connections."""
    table = DatabaseTable("orders-db", place.address(kind))
    yield table
    await table.close()


@pytest.fixture
async def identity(table: DatabaseTable) -> str:
    """The table's identity."""
    return await table.identity()


async def committed(kind: str, place: Place, name: str) -> None:
    """An application's row, committed."""
    async with KINDS[kind](place, True) as db:
        kind_of(db).insert(db, name)


async def test_the_first_row_decides(kind: str, place: Place, table: DatabaseTable, identity: str):
    """A row of the application commits; without one the resolver's aborts, and stays."""
    await committed(kind, place, "c/0:1/aa")
    assert await table.decide("c/0:1/aa", identity)
    assert not await table.decide("c/0:2/bb", identity)
    assert not await table.decide("c/0:2/bb", identity)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        await committed(kind, place, "c/0:2/bb")


async def test_a_resolver_waits_for_an_uncommitted_row(
    kind: str, place: Place, table: DatabaseTable, identity: str
):
    """While the application's database transaction is open, nothing is decided."""
    async with KINDS[kind](place, True) as db:
        kind_of(db).insert(db, "c/0:1/aa")
        with pytest.raises(RetriableError, match="not decided yet"):
            await table.decide("c/0:1/aa", identity)
        deciding = asyncio.create_task(table.decide("c/0:1/aa", identity))
        await asyncio.wait([deciding], timeout=0.2)  # it waits for the row by then
    assert await deciding


async def test_an_application_that_rolls_back_aborts(
    kind: str, place: Place, table: DatabaseTable, identity: str
):
    """The row that was inserted and rolled back decides nothing."""
    async with KINDS[kind](place, True) as db:
        kind_of(db).insert(db, "c/0:1/aa")
        deciding = asyncio.create_task(table.decide("c/0:1/aa", identity))
        await asyncio.wait([deciding], timeout=0.2)  # it waits for the row by then
        db.rollback()
    assert not await deciding


async def test_two_resolvers_agree(kind: str, place: Place, table: DatabaseTable, identity: str):
    """Each reads the row that stands, no matter who inserted it."""
    await committed(kind, place, "c/0:1/aa")
    other = DatabaseTable("orders-db", place.address(kind))
    names = ["c/0:1/aa", "c/0:2/bb"] * 4
    outcomes = await asyncio.gather(
        *(it.decide(name, identity) for it in (table, other) for name in names)
    )
    await other.close()
    assert outcomes == [True, False] * 8


async def test_rows_of_a_cluster_in_order(
    kind: str, place: Place, table: DatabaseTable, identity: str
):
    """Rows are read page by page, without those of other clusters, and deleted by their keys."""
    for name in ("c/0:1/a", "c/0:10/a", "c/0:2/a", "d/0:1/a", "b/0:1/a"):
        await committed(kind, place, name)
    assert await table.rows("", "c/", 2) == ["c/0:1/a", "c/0:10/a"]
    assert await table.rows("c/0:10/a", "c/", 2) == ["c/0:2/a"]
    await table.delete(["c/0:1/a", "c/0:10/a", "c/0:9/a"])
    assert await table.rows("", "c/", 9) == ["c/0:2/a"]
    assert await table.rows("", "d/", 9) == ["d/0:1/a"]


async def test_another_table_decides_nothing(
    kind: str, place: Place, table: DatabaseTable, identity: str
):
    """A row that is not there means nothing in another database; no row is inserted."""
    await committed(kind, place, "c/0:1/aa")
    for other in ("0" * 32, ""):
        for name in ("c/0:1/aa", "c/0:2/bb"):
            with pytest.raises(OtherTableError, match="orders-db"):
                await table.decide(name, other)
        with pytest.raises(OtherTableError):
            await table.outcomes(["c/0:1/aa"], other)
    assert await rows(kind, place) == {"c/0:1/aa": "committed"}
    assert await table.identity() == identity


async def test_many_rows_are_read_at_once(
    kind: str, place: Place, table: DatabaseTable, identity: str
):
    """Only rows that stand have an outcome; one that is not committed is not waited for."""
    await committed(kind, place, "c/0:1/aa")
    await table.decide("c/0:2/bb", identity)
    async with KINDS[kind](place, True) as db:
        kind_of(db).insert(db, "c/0:3/cc")
        keys = ["c/0:1/aa", "c/0:2/bb", "c/0:3/cc", *map(str, range(600))]
        outcomes = dict(await table.outcomes(keys, identity))
        assert {key: outcomes.get(key) for key in keys[:3]} == {
            "c/0:1/aa": "committed",
            "c/0:2/bb": "aborted",
            "c/0:3/cc": None,
        }
    assert await table.outcomes([], identity) == {}


async def test_statements_that_hang_hold_up_no_other_database(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Each ends in time, here and in the database; the table's threads serve again at once."""
    monkeypatch.setattr(table_module, "SILENCE_S", 0.2)
    async with KINDS["psycopg"](place, True) as db:
        kind_of(db).create_table(db)
    table = DatabaseTable("orders-db", place.address("psycopg"))
    other = DatabaseTable("stock-db", f"sqlite:///{tmp_path / 'stock.sqlite'}")
    with psycopg.connect(place.server.conninfo) as lock, psycopg.connect(lock.info.dsn) as watch:
        lock.execute("LOCK TABLE stilltide_decisions")
        hanging = [asyncio.ensure_future(table.rows("", "c/", 9)) for _ in range(2 * THREADS)]
        with pytest.raises(NoDecisionsTableError):
            await other.identity()
        for statement in hanging:
            with pytest.raises(RetriableError, match=r"orders-db (does not answer|is not decided)"):
                await statement
        waiting = watch.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
        assert waiting == (0,)
        lock.rollback()
        assert await table.rows("", "c/", 9) == []
    await table.close()
    await other.close()


async def test_a_server_that_stands_still_keeps_no_thread(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    """A process of the database that does not even take a cancellation is cut off."""
    monkeypatch.setattr(table_module, "SILENCE_S", 0.2)
    monkeypatch.setattr(table_module, "CANCEL_S", 0.1)
    async with KINDS["psycopg"](place, True) as db:
        kind_of(db).create_table(db)
    table = DatabaseTable("orders-db", place.address("psycopg"))
    await table.identity()
    with psycopg.connect(place.server.conninfo) as watch:
        watch.autocommit = True
        frozen = [
            pid
            for (pid,) in watch.execute(
                "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )
        ]
    assert frozen
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(RetriableError, match="orders-db does not answer"):
            await table.rows("", "c/", 9)
        assert await table.rows("", "c/", 9) == []
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    await table.close()


async def test_a_locked_table_of_mysql_is_not_waited_for(place: Place):
    """The server itself ends the wait for a lock on the table, which MySQL sets to a year."""
    kind = "alchemy-pymysql"
    async with KINDS[kind](place, True) as db:
        kind_of(db).create_table(db)
    table = DatabaseTable("orders-db", place.address(kind))
    async with KINDS[kind](place, True) as db:
        db.execute(text("LOCK TABLES stilltide_decisions WRITE"))
        with pytest.raises(RetriableError, match="not decided yet"):
            await table.rows("", "c/", 9)
        db.execute(text("UNLOCK TABLES"))
    assert await table.rows("", "c/", 9) == []
    await table.close()


async def test_a_missing_table_is_named(place: Place):
    """The error names the command that prints the statement."""
    for kind in ADDRESSES:
        table = DatabaseTable("orders-db", place.address(kind))
        with pytest.raises(NoDecisionsTableError, match="decisions-ddl"):
            await table.decide("c/0:1/aa", "identity")
        await table.close()


async def test_a_database_that_is_away(tmp_path: Path):
    """The error names the database, and no password."""
    table = DatabaseTable("orders-db", f"postgresql://me:secret@/orders?host={tmp_path}")
    with pytest.raises(RetriableError, match="orders-db is away") as caught:
        await table.decide("c/0:1/aa", "identity")
    await table.close()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_engine_in_place_of_an_address(place: Place, driver: str):
    """The engine's address is used; the driver is one that waits by itself."""
    url = make_url(place.server.url(driver))
    url = url.update_query_dict({"host": str(place.server.folder)})
    if driver == "asyncpg":
        url = url.update_query_dict({"ssl": "disable", "prepared_statement_cache_size": "0"})
    async with KINDS["psycopg"](place, True) as db:
        kind_of(db).create_table(db)
    engine = create_async_engine(url) if driver == "asyncpg" else create_engine(url)
    txn = NotedTransaction()
    async with Decisions("orders-db", engine) as decisions, KINDS["asyncpg"](place, True) as db:
        await decisions.enlist(txn, db)
    assert await rows("psycopg", place) == {txn.name: "committed"}


@pytest.mark.parametrize(
    "address", ["orders:secret", "foxpro://secret@host", "oracle://secret@h", "sqlite://"]
)
def test_an_address_that_cannot_be_used(address: str):
    """The error shows nothing of the address."""
    with pytest.raises(FatalError, match="orders-db") as caught:
        DatabaseTable("orders-db", address)
    assert "secret" not in str(caught.value)
