"""The application's row, on real databases, by every kind of connection.

The transaction here says only in which order it was called; those of a cluster are in
`test_both_or_neither.py`.
"""

from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from stilltide.databases import Decisions
from stilltide.errors import (
    ArgumentError,
    DecidedError,
    NoDatabaseTransactionError,
    NoDecisionsTableError,
    RequestTimeoutError,
)
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.sync import Decisions as SyncDecisions
from tests.support.databases.kinds import BLOCKING, KINDS, Place, rows


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


Deciding = Callable[[str], Decisions]


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


async def test_a_savepoint_is_refused(place: Place, decisions_of: Deciding):
    """A savepoint may be rolled back while its transaction commits: the row would be missing."""
    decisions = decisions_of("alchemy-psycopg")
    engine = create_engine(place.server.url("psycopg"))
    txn = NotedTransaction()
    with engine.connect() as db:
        await decisions.create_table(db)
        db.commit()
        with db.begin_nested(), pytest.raises(NoDatabaseTransactionError, match="savepoint"):
            await decisions.enlist(txn, db)
    engine.dispose()
    assert not txn.prepared


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
