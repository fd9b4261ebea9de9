"""The ways in which the blocks of an enlisted transaction are left, on real databases.

A user saw records without their row: the database transaction had been rolled back without an
exception, or had not yet committed when the records became visible.
"""
# ruff: noqa: PT012 - an error is raised on leaving the transaction's block, not by one statement

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from structlog.testing import capture_logs

from stilltide import TransactionClient
from stilltide.connectors.databases import table as table_module
from stilltide.databases import Decisions
from stilltide.errors import (
    DecidedOtherwiseError,
    NotOpenError,
    OutcomeUnknownError,
    TransactionStateError,
)
from stilltide.sync import Decisions as SyncDecisions
from stilltide.sync import TransactionClient as SyncTransactionClient
from stilltide.testing import MemoryCluster, SyncMemoryCluster
from tests.support.databases.kinds import KINDS, Place, rows
from tests.support.databases.resolving import Deciding, resolve, values

FEW = ("psycopg", "asyncpg", "aiosqlite")


@pytest.fixture
async def client(cluster: MemoryCluster) -> AsyncIterator[TransactionClient]:
    """Writes to the cluster."""
    async with TransactionClient(connector=cluster.connector) as client:
        yield client


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases that say soon that a row is locked."""
    waits = {
        "postgresql": "SET LOCAL lock_timeout = '100ms'",
        "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    }
    monkeypatch.setattr(table_module, "_LOCK_WAITS", waits)
    monkeypatch.setattr(table_module, "_CONNECT", {"pysqlite": {"timeout": 0.1}})


async def ready(kind: str, place: Place, decisions_of: Deciding) -> Decisions:
    """`Decisions` of a database with its table."""
    decisions = decisions_of(kind)
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    return decisions


def events(logs: Any) -> list[str]:
    """Names of the lines of a log."""
    return [line["event"] for line in logs]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_exception_that_is_swallowed_between_the_blocks(
    kind: str,
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
):
    """The database has rolled back, and so has the transaction, which the log says."""
    decisions = await ready(kind, place, decisions_of)
    with capture_logs() as logs:
        async with client.transaction() as txn:
            await txn.send("orders", b"neither")
            with suppress(ZeroDivisionError):
                async with KINDS[kind](place, True) as db:
                    await decisions.enlist(txn, db)
                    raise ZeroDivisionError
    assert txn.state == "aborted"
    assert "database_rolled_back" in events(logs)
    assert await values(cluster) == []


async def test_an_error_of_enlist_that_is_swallowed(
    place: Place, client: TransactionClient, cluster: MemoryCluster, decisions_of: Deciding
):
    """A failed statement turns PostgreSQL's later COMMIT into a rollback, so nothing commits."""
    decisions = await ready("psycopg", place, decisions_of)
    with pytest.raises(TransactionStateError, match="was to be prepared, and was not"):
        async with client.transaction() as txn, KINDS["psycopg"](place, True) as db:
            await txn.send("orders", b"neither")
            with suppress(psycopg.Error):
                db.execute("SELECT * FROM nowhere")
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                await decisions.enlist(txn, db)
    assert txn.state == "aborted"
    assert await values(cluster) == []


@asynccontextmanager
async def rollback_of_psycopg(place: Place) -> AsyncIterator[Any]:
    """`rollback` in the block."""
    with psycopg.connect(place.server.conninfo) as db:
        yield db
        db.rollback()


@asynccontextmanager
async def raised_rollback_of_psycopg(place: Place) -> AsyncIterator[Any]:
    """The exception that rolls back and goes no further."""
    connecting = psycopg.AsyncConnection.connect(place.server.conninfo)
    async with await connecting as db, db.transaction():
        yield db
        raise psycopg.Rollback


@asynccontextmanager
async def rollback_of_asyncpg(place: Place) -> AsyncIterator[Any]:
    """A transaction without a block."""
    db = await asyncpg.connect(host=str(place.server.folder), user="tests", database="postgres")
    transaction = db.transaction()
    await transaction.start()
    yield db
    await transaction.rollback()
    await db.close()


@asynccontextmanager
async def closed_sqlite(place: Place) -> AsyncIterator[Any]:
    """A connection that is closed without `commit`."""
    import sqlite3  # noqa: PLC0415 - this kind alone

    with closing(sqlite3.connect(place.sqlite)) as db:
        yield db


@asynccontextmanager
async def closed_alchemy(place: Place) -> AsyncIterator[Any]:
    """A connection that goes back to its pool without `commit`."""
    engine = create_engine(place.server.url("psycopg"))
    with engine.connect() as db:
        yield db
    engine.dispose()


@asynccontextmanager
async def closed_session(place: Place) -> AsyncIterator[Any]:
    """An awaited connection that is closed without `commit`."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{place.sqlite}")
    async with engine.connect() as db:
        yield db
    await engine.dispose()


SILENT: dict[str, Callable[[Place], AbstractAsyncContextManager[Any]]] = {
    "psycopg": rollback_of_psycopg,
    "psycopg-async": raised_rollback_of_psycopg,
    "asyncpg": rollback_of_asyncpg,
    "sqlite3": closed_sqlite,
    "alchemy-psycopg": closed_alchemy,
    "alchemy-aiosqlite": closed_session,
}


@pytest.mark.parametrize("kind", SILENT)
async def test_a_rollback_without_an_exception(
    kind: str,
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
):
    """Nothing is raised, for a rollback may be meant; no record is visible, as no row stands."""
    decisions = await ready(kind, place, decisions_of)
    async with client.transaction() as txn:
        await txn.send("orders", b"neither")
        async with SILENT[kind](place) as db:
            await decisions.enlist(txn, db)
    assert txn.state == "aborted"
    assert await values(cluster) == []


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", KINDS)
async def test_blocks_the_other_way_round(
    kind: str,
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
):
    """The transaction does not commit before the database: an error, and neither takes effect."""
    decisions = await ready(kind, place, decisions_of)
    with pytest.raises(OutcomeUnknownError, match="before that of"):
        async with KINDS[kind](place, True) as db, client.transaction() as txn:
            await txn.send("orders", b"neither")
            await decisions.enlist(txn, db)
    assert txn.id is not None
    assert await client.outcome(txn.id) == "prepared"
    assert await rows(kind, place) == {}
    await resolve(cluster, place.address(kind))
    assert await client.outcome(txn.id) == "aborted"
    assert await values(cluster) == []


@pytest.mark.parametrize("kind", FEW)
async def test_an_exception_after_the_database_has_committed(
    kind: str,
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
):
    """The row stands, so that the records do; the exception goes on."""
    decisions = await ready(kind, place, decisions_of)
    with capture_logs() as logs, pytest.raises(ZeroDivisionError):
        async with client.transaction() as txn:
            await txn.send("orders", b"both")
            async with KINDS[kind](place, True) as db:
                await decisions.enlist(txn, db)
            raise ZeroDivisionError
    assert txn.state == "committed"
    assert "database_committed" in events(logs)
    assert await values(cluster) == [b"both"]


@pytest.mark.parametrize("kind", FEW)
async def test_a_task_that_is_cancelled(
    kind: str,
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
):
    """Nothing is waited for; a resolver asks the database."""
    decisions = await ready(kind, place, decisions_of)
    with pytest.raises(asyncio.CancelledError):
        async with client.transaction() as txn:
            await txn.send("orders", b"both")
            async with KINDS[kind](place, True) as db:
                await decisions.enlist(txn, db)
            raise asyncio.CancelledError
    assert txn.state == "prepared"
    await resolve(cluster, place.address(kind))
    assert await values(cluster) == [b"both"]


async def test_another_task_uses_the_connection_meanwhile(
    place: Place, client: TransactionClient, cluster: MemoryCluster, decisions_of: Deciding
):
    """The application's connection is back in its pool when the transaction ends."""
    decisions = await ready("asyncpg", place, decisions_of)
    options: dict[str, Any] = {"host": str(place.server.folder), "user": "tests"}
    async with asyncpg.create_pool(database="postgres", min_size=1, max_size=1, **options) as pool:
        async with client.transaction() as txn:
            await txn.send("orders", b"both")
            async with pool.acquire() as db, db.transaction():
                await decisions.enlist(txn, db)
            other = await pool.acquire()
            transaction = other.transaction()
            await transaction.start()
            await other.execute("CREATE TABLE of_another_task (id int)")
        assert txn.state == "committed"
        assert other.is_in_transaction()
        await transaction.rollback()
        await pool.release(other)
    assert await values(cluster) == [b"both"]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_database_that_is_away_when_the_block_ends(
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
    *,
    fails: bool,
):
    """Nobody guesses: the transaction stays prepared, and a resolver finds the row later."""
    decisions = await ready("psycopg", place, decisions_of)
    with pytest.raises(ZeroDivisionError if fails else OutcomeUnknownError):
        async with client.transaction() as txn:
            await txn.send("orders", b"both")
            async with KINDS["psycopg"](place, True) as db:
                await decisions.enlist(txn, db)
            place.server.stop()
            if fails:
                raise ZeroDivisionError
    place.server.start()
    assert txn.state == "prepared"
    await resolve(cluster, place.address("psycopg"))
    assert await values(cluster) == [b"both"]


async def test_a_database_that_was_away_is_asked_again(
    place: Place, client: TransactionClient, cluster: MemoryCluster, decisions_of: Deciding
):
    """Connections that broke meanwhile are replaced, without an error."""
    decisions = await ready("psycopg", place, decisions_of)
    for value in (b"1", b"2"):
        async with client.transaction() as txn:
            await txn.send("orders", value)
            async with KINDS["psycopg"](place, True) as db:
                await decisions.enlist(txn, db)
            place.server.stop()
            place.server.start()
    assert await values(cluster) == [b"1", b"2"]


async def test_a_resolver_comes_first(
    place: Place, client: TransactionClient, cluster: MemoryCluster, decisions_of: Deciding
):
    """It has committed and deleted the row, which is no sign of a rollback."""
    decisions = await ready("psycopg", place, decisions_of)
    async with client.transaction() as txn:
        await txn.send("orders", b"both")
        async with KINDS["psycopg"](place, True) as db:
            await decisions.enlist(txn, db)
        await resolve(cluster, place.address("psycopg"))
    assert txn.state == "committed"
    assert await values(cluster) == [b"both"]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("kind", FEW)
async def test_what_the_program_asks_for_itself(
    kind: str,
    place: Place,
    client: TransactionClient,
    cluster: MemoryCluster,
    decisions_of: Deciding,
):
    """`commit` and `abort` end an enlisted transaction as the database says, or raise."""
    decisions = await ready(kind, place, decisions_of)
    async with client.transaction() as txn:
        await txn.send("orders", b"both")
        async with KINDS[kind](place, True) as db:
            await decisions.enlist(txn, db)
            for early in (txn.commit, txn.abort):
                with pytest.raises(OutcomeUnknownError):
                    await early()
            with pytest.raises(TransactionStateError):
                await decisions.enlist(txn, db)
            with pytest.raises(TransactionStateError):
                await txn.send("orders", b"late")
        with pytest.raises(DecidedOtherwiseError, match="the database has committed") as caught:
            await txn.abort()
        assert caught.value.committed
    assert txn.state == "committed"
    txn = client.transaction()
    await txn.send("orders", b"neither")
    with suppress(ZeroDivisionError):
        async with KINDS[kind](place, True) as db:
            await decisions.enlist(txn, db)
            raise ZeroDivisionError
    with pytest.raises(DecidedOtherwiseError, match="has not committed"):
        await txn.commit()
    assert txn.state == "aborted"
    assert await values(cluster) == [b"both"]


async def test_a_client_that_is_closed_before_the_block_ends(
    place: Place, cluster: MemoryCluster, decisions_of: Deciding
):
    """The row stands, so that a resolver commits; the log says so."""
    decisions = await ready("psycopg", place, decisions_of)
    async with TransactionClient(connector=cluster.connector) as client:
        with capture_logs() as logs:
            async with client.transaction() as txn:
                await txn.send("orders", b"both")
                async with KINDS["psycopg"](place, True) as db:
                    await decisions.enlist(txn, db)
                await client.close()
    assert "decision_left" in events(logs)
    await resolve(cluster, place.address("psycopg"))
    assert await values(cluster) == [b"both"]


async def test_decisions_that_are_closed_before_the_block_ends(
    place: Place, client: TransactionClient, cluster: MemoryCluster, decisions_of: Deciding
):
    """Nobody asks the database, so that a resolver does; later calls are refused."""
    decisions = await ready("psycopg", place, decisions_of)
    with pytest.raises(OutcomeUnknownError, match="is not open"):
        async with client.transaction() as txn:
            await txn.send("orders", b"both")
            async with KINDS["psycopg"](place, True) as db:
                await decisions.enlist(txn, db)
            await decisions.close()
    assert txn.state == "prepared"
    with suppress(TransactionStateError):  # no commit without the row
        async with client.transaction() as later:
            await later.send("orders", b"neither")
            with pytest.raises(NotOpenError):
                await decisions.enlist(later, db)
    assert later.state == "aborted"
    await resolve(cluster, place.address("psycopg"))
    assert await values(cluster) == [b"both"]


@pytest.mark.usefixtures("hasty")
async def test_programs_without_an_event_loop(place: Place):
    """`stilltide.sync` asks the database alike."""
    with (
        SyncDecisions("orders-db", place.address("psycopg")) as decisions,
        SyncMemoryCluster({"orders": 1}) as cluster,
        SyncTransactionClient(connector=cluster.connector) as client,
    ):
        with psycopg.connect(place.server.conninfo) as db:
            decisions.create_table(db)
        with client.transaction() as txn, psycopg.connect(place.server.conninfo) as db:
            txn.send("orders", b"neither")
            decisions.enlist(txn, db)
            db.rollback()
        assert txn.state == "aborted"
        with client.transaction() as txn, psycopg.connect(place.server.conninfo) as db:
            txn.send("orders", b"both")
            decisions.enlist(txn, db)
        assert [record.value for record in cluster.committed("orders")] == [b"both"]
        with (
            pytest.raises(OutcomeUnknownError),
            psycopg.connect(place.server.conninfo) as db,
            client.transaction() as txn,
        ):
            txn.send("orders", b"nor this")
            decisions.enlist(txn, db)
        assert txn.state == "prepared"
