"""The application's row, on real databases, by every kind of connection.

The transaction here says only in which order it was called; those of a cluster are in
`test_both_or_neither.py`.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    suppress,
)
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text

from stilltide.errors import (
    ArgumentError,
    DecidedError,
    NoDatabaseTransactionError,
    NoDecisionsTableError,
    OtherTableError,
    RequestTimeoutError,
)
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.sync import Decisions as SyncDecisions
from tests.support.databases.kinds import BLOCKING, KINDS, Place, rows
from tests.support.databases.resolving import Deciding


class NotedTransaction:
    """Notes what was asked of it; `fails` is raised by `prepare`."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.name = f"cluster/0:{uuid4().int % 10**9}/{uuid4().hex[:16]}"
        self.prepared: list[str] = []
        self._fails = fails

    async def token_id(self) -> str:
        """The name that was drawn."""
        return self.name

    async def prepare(self, *, decider: str | DecidingDatabase = "") -> str:
        """Notes the decider's name."""
        if self._fails is not None:
            raise self._fails
        assert isinstance(decider, DecidingDatabase)
        self.prepared.append(decider.decider.name)
        return "token"


class NotedSyncTransaction:
    """The same, not awaited."""

    def __init__(self) -> None:
        self.name = f"cluster/0:{uuid4().int % 10**9}/{uuid4().hex[:16]}"
        self.prepared: list[str] = []

    def token_id(self) -> str:
        """The name that was drawn."""
        return self.name

    def prepare(self, *, decider: str | DecidingDatabase = "") -> str:
        """Notes the decider's name."""
        assert isinstance(decider, DecidingDatabase)
        self.prepared.append(decider.decider.name)
        return "token"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_row_is_part_of_the_database_transaction(
    kind: str, place: Place, decisions_of: Deciding
):
    """The row stands once the database has committed, and not when it has rolled back."""
    decisions = decisions_of(kind)
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    kept, lost = NotedTransaction(), NotedTransaction()
    async with KINDS[kind](place, True) as db:
        await decisions.enlist(kept, db)
    with suppress(ZeroDivisionError):
        async with KINDS[kind](place, True) as db:
            await decisions.enlist(lost, db)
            raise ZeroDivisionError
    assert kept.prepared == lost.prepared == ["orders-db"]
    assert await rows(kind, place) == {kept.name: "committed"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_connection_that_commits_each_statement_is_refused(
    kind: str, place: Place, decisions_of: Deciding
):
    """Without a database transaction no row is inserted, and nothing is prepared."""
    decisions = decisions_of(kind)
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    txn = NotedTransaction()
    async with KINDS[kind](place, False) as db:
        with pytest.raises(NoDatabaseTransactionError, match="autocommit"):
            await decisions.enlist(txn, db)
    assert not txn.prepared
    assert await rows(kind, place) == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_missing_table_is_named(kind: str, place: Place, decisions_of: Deciding):
    """The error says how the table is made; nothing is prepared."""
    decisions = decisions_of(kind)
    txn = NotedTransaction()
    with pytest.raises(NoDecisionsTableError, match="decisions-ddl"):
        async with KINDS[kind](place, True) as db:
            await decisions.enlist(txn, db)
    assert not txn.prepared


@pytest.mark.parametrize("kind", KINDS)
async def test_a_row_that_stands_fails_the_database_transaction(
    kind: str, place: Place, decisions_of: Deciding
):
    """A second row of the same key is refused, no matter who wrote the first one."""
    decisions = decisions_of(kind)
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    txn = NotedTransaction()
    async with KINDS[kind](place, True) as db:
        await decisions.enlist(txn, db)
    with pytest.raises(DecidedError, match=txn.name):
        async with KINDS[kind](place, True) as db:
            await decisions.enlist(txn, db)
    assert txn.prepared == ["orders-db"]


async def test_the_row_comes_before_the_preparation(place: Place, decisions_of: Deciding):
    """When `prepare` raises, the row is inserted, and goes with its database transaction."""
    decisions = decisions_of("asyncpg")
    async with KINDS["asyncpg"](place, True) as db:
        await decisions.create_table(db)
    txn = NotedTransaction(RequestTimeoutError("no answer"))
    query, outcomes = "SELECT outcome FROM stilltide_decisions WHERE token_id = $1", []
    with suppress(RequestTimeoutError):
        async with KINDS["asyncpg"](place, True) as db:
            try:
                await decisions.enlist(txn, db)
            finally:
                outcomes.append(await db.fetchval(query, txn.name))
    assert outcomes == ["committed"]
    assert await rows("asyncpg", place) == {}


@asynccontextmanager
async def savepoint_of_psycopg(place: Place) -> AsyncIterator[Any]:
    """A transaction of `psycopg` within what an earlier statement has begun."""
    with psycopg.connect(place.server.conninfo) as db:
        db.execute("SELECT 1")
        with db.transaction():
            yield db


@asynccontextmanager
async def savepoint_of_psycopg_async(place: Place) -> AsyncIterator[Any]:
    """The same, awaited, and two blocks deep."""
    async with KINDS["psycopg-async"](place, True) as db, db.transaction():
        yield db


@asynccontextmanager
async def savepoint_of_asyncpg(place: Place) -> AsyncIterator[Any]:
    """A transaction of `asyncpg` inside of another one."""
    async with KINDS["asyncpg"](place, True) as db, db.transaction():
        yield db


@asynccontextmanager
async def savepoint_of_sql(place: Place) -> AsyncIterator[Any]:
    """One that the library knows nothing of."""
    async with KINDS["asyncpg-pool"](place, True) as db:
        await db.execute("SAVEPOINT own")
        yield db


@asynccontextmanager
async def savepoint_of_alchemy(place: Place) -> AsyncIterator[Any]:
    """A nested transaction of SQLAlchemy, on SQLite."""
    async with KINDS["alchemy-sqlite"](place, True) as db:
        with db.begin_nested():
            yield db


@asynccontextmanager
async def savepoint_of_session(place: Place) -> AsyncIterator[Any]:
    """A nested transaction of a session of SQLAlchemy."""
    async with KINDS["alchemy-session"](place, True) as db:
        with db.begin_nested():
            yield db


SAVEPOINTS: dict[str, Callable[[Place], AbstractAsyncContextManager[Any]]] = {
    "psycopg": savepoint_of_psycopg,
    "psycopg-async": savepoint_of_psycopg_async,
    "asyncpg": savepoint_of_asyncpg,
    "asyncpg-pool": savepoint_of_sql,
    "alchemy-sqlite": savepoint_of_alchemy,
    "alchemy-session": savepoint_of_session,
}


@pytest.mark.parametrize("kind", SAVEPOINTS)
async def test_a_savepoint_is_refused(kind: str, place: Place, decisions_of: Deciding):
    """A savepoint may be rolled back while its transaction commits: the row would be missing."""
    decisions, txn = decisions_of(kind), NotedTransaction()
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    with pytest.raises(NoDatabaseTransactionError, match="savepoint"):
        async with SAVEPOINTS[kind](place) as db:
            await decisions.enlist(txn, db)
    assert not txn.prepared
    assert await rows(kind, place) == {}


@pytest.mark.parametrize("kind", ["psycopg-async", "alchemy-asyncpg", "alchemy-session"])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_transaction_after_a_savepoint(
    kind: str, place: Place, decisions_of: Deciding, *, fails: bool
):
    """One that has ended does no harm, whether it was rolled back or not."""
    decisions, txn = decisions_of(kind), NotedTransaction()
    async with KINDS[kind](place, True) as db:
        await decisions.create_table(db)
    async with KINDS[kind](place, True) as db:
        nested = db.transaction() if kind == "psycopg-async" else db.begin_nested()
        statement: Any = "CREATE TEMPORARY TABLE orders (id int)"
        statement = statement if kind == "psycopg-async" else text(statement)
        with suppress(ZeroDivisionError):
            async with nested if kind != "alchemy-session" else blocking(nested):
                made = db.execute(statement)
                await made if kind != "alchemy-session" else None
                if fails:
                    raise ZeroDivisionError
        await decisions.enlist(txn, db)
    assert await rows(kind, place) == {txn.name: "committed"}


@asynccontextmanager
async def blocking(block: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """A block that is not awaited, as one that is."""
    with block:
        yield


async def test_a_savepoint_that_asyncpg_has_left_open(place: Place, decisions_of: Deciding):
    """One whose block was rolled back, which the library does not release: refused, as the limit.

    One whose block has ended well is released.
    """
    decisions, txn = decisions_of("asyncpg"), NotedTransaction()
    async with KINDS["asyncpg"](place, True) as db:
        await decisions.create_table(db)
    async with KINDS["asyncpg"](place, True) as db:
        async with db.transaction():
            await db.execute("CREATE TEMPORARY TABLE orders (id int)")
        await decisions.enlist(txn, db)
    async with KINDS["asyncpg"](place, False) as db:
        transaction = db.transaction()
        await transaction.start()
        with suppress(ZeroDivisionError):
            async with db.transaction():
                raise ZeroDivisionError
        with pytest.raises(NoDatabaseTransactionError, match="asyncpg"):
            await decisions.enlist(NotedTransaction(), db)
        await transaction.rollback()
    assert await rows("asyncpg", place) == {txn.name: "committed"}


DJANGO = """
import sys
from django.conf import settings

engine, name, host, address = sys.argv[1:]
database = {"ENGINE": f"django.db.backends.{engine}", "NAME": name, "HOST": host, "USER": "tests"}
settings.configure(DATABASES={"default": database}, USE_TZ=True)

from django.db import connection, transaction
from stilltide.errors import NoDatabaseTransactionError
from stilltide.sync import Decisions
from tests.integration.databases.test_enlist import NotedSyncTransaction

with Decisions("orders-db", address) as decisions:
    connection.ensure_connection()
    decisions.create_table(connection.connection)
    outer, nested, alone = [NotedSyncTransaction() for _ in range(3)]
    with transaction.atomic():
        decisions.enlist(outer, connection.connection)
    print(outer.name, outer.prepared)
    for txn, block in ((alone, None), (nested, transaction.atomic)):
        try:
            if block is None:
                decisions.enlist(txn, connection.connection)
            else:
                with transaction.atomic(), block():
                    decisions.enlist(txn, connection.connection)
            print("taken")
        except NoDatabaseTransactionError as error:
            print("refused", txn.prepared, error.primary)
"""


@pytest.mark.parametrize("kind", ["psycopg", "sqlite3"])
async def test_django(kind: str, place: Place, decisions_of: Deciding):
    """`atomic` holds the row; without it, and inside of another one, nothing is prepared."""
    folder = str(place.server.folder)
    arguments = {
        "psycopg": ("postgresql", "postgres", folder, place.address(kind)),
        "sqlite3": ("sqlite3", place.sqlite, "", place.address(kind)),
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DJANGO, *arguments[kind], stdout=asyncio.subprocess.PIPE
    )
    told, _ = await child.communicate()
    outer, alone, nested = told.decode().splitlines()
    name, prepared = outer.split(" ", 1)
    assert prepared == "['orders-db']"
    assert alone.startswith("refused [] the database connection commits each statement")
    if kind == "psycopg":
        assert nested.startswith("refused [] the connection is inside of a savepoint")
        assert await rows(kind, place) == {name: "committed"}
    else:  # a limit: SQLite does not say
        assert nested == "taken"


@pytest.mark.parametrize(("kind", "other"), [("psycopg", "sqlite3"), ("sqlite3", "psycopg")])
async def test_the_connection_is_to_another_database_than_the_address(
    kind: str, other: str, place: Place, decisions_of: Deciding
):
    """The database of the address would be asked, and would abort what the other one commits."""
    txn = NotedTransaction()
    for of in (kind, other):
        async with KINDS[of](place, True) as db:
            await decisions_of(of).create_table(db)
    with pytest.raises(OtherTableError, match="identity") as caught:
        async with KINDS[kind](place, True) as db:
            await decisions_of(other).enlist(txn, db)
    assert "address" in caught.value.hint
    assert not txn.prepared
    assert await rows(kind, place) == {}


@pytest.mark.parametrize("kind", ["psycopg", "aiosqlite"])
async def test_a_table_without_identity_is_named(kind: str, place: Place, decisions_of: Deciding):
    """Whether the address has been read before or not; the statements may be run again."""
    before, after, txn = decisions_of(kind), decisions_of(kind), NotedTransaction()
    async with KINDS[kind](place, True) as db:
        await before.create_table(db)
    async with KINDS[kind](place, True) as db:
        await before.enlist(NotedTransaction(), db)
    forget(kind, place)
    for decisions in (before, after):
        with pytest.raises(NoDecisionsTableError, match="has no identity"):
            async with KINDS[kind](place, True) as db:
                await decisions.enlist(txn, db)
    assert not txn.prepared


async def test_an_identity_that_no_database_has_drawn(place: Place, decisions_of: Deciding):
    """A text that a person has written may stand in two databases."""
    decisions = decisions_of("sqlite3")
    async with KINDS["sqlite3"](place, True) as db:
        await decisions.create_table(db)
        db.execute("UPDATE stilltide_decisions SET outcome = 'production'")
    with pytest.raises(NoDecisionsTableError, match="'production'"):
        async with KINDS["sqlite3"](place, True) as db:
            await decisions.enlist(NotedTransaction(), db)


def forget(kind: str, place: Place) -> None:
    """Deletes the identity."""
    engine = create_engine(place.address(kind).replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as db:
        db.execute(text("DELETE FROM stilltide_decisions WHERE token_id = 'identity'"))
    engine.dispose()


async def test_other_objects_are_refused(decisions_of: Deciding):
    """The error names the libraries whose connections are taken."""
    with pytest.raises(ArgumentError, match="SQLAlchemy, psycopg"):
        await decisions_of("sqlite3").enlist(NotedTransaction(), object())


@pytest.mark.parametrize("kind", KINDS)
async def test_programs_without_an_event_loop(kind: str, place: Place, decisions_of: Deciding):
    """`stilltide.sync` takes the connections that are not awaited, and refuses the others."""
    txn = NotedSyncTransaction()
    async with KINDS[kind](place, True) as db:
        await decisions_of(kind).create_table(db)
    with SyncDecisions("orders-db", place.address(kind)) as decisions:
        async with KINDS[kind](place, True) as db:
            if kind not in BLOCKING:
                with pytest.raises(ArgumentError, match="have to be awaited"):
                    decisions.enlist(txn, db)
                return
            decisions.enlist(txn, db)
    assert txn.prepared == ["orders-db"]
    assert await rows(kind, place) == {txn.name: "committed"}


FORKS = """
import os, sys
from stilltide.errors import ForkedError
from stilltide.sync import Decisions
from tests.integration.databases.test_enlist import NotedSyncTransaction
import sqlite3

path = sys.argv[1]

def enlists(decisions):
    db = sqlite3.connect(path)
    txn = NotedSyncTransaction()
    with db:
        decisions.enlist(txn, db)
    return txn.prepared

used, unused = [Decisions("orders-db", f"sqlite:///{path}") for _ in range(2)]
db = sqlite3.connect(path)
with db:
    used.create_table(db)
db.close()
enlists(used)
if (pid := os.fork()) == 0:
    status = 1
    try:
        enlists(used)
    except ForkedError:
        status = enlists(unused) != ["orders-db"]
    os._exit(status)
assert os.waitpid(pid, 0)[1] == 0
used.close()
with used:
    assert enlists(used) == ["orders-db"]
"""


async def test_decisions_and_forks(tmp_path: Path):
    """What was used before the fork is refused after it; what is first used there works."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKS, str(tmp_path / "orders.sqlite")
    )
    assert await child.wait() == 0
