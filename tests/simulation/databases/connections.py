"""The way to the database: connections of applications, and the port of resolvers.

What is sent takes time, arrives late or never, and answers are lost, as on the way to brokers. A
connection whose process dies, or that waits too long for an answer, is closed, and the database
rolls back what the connection has not committed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from stilltide.connectors.errors import RetriableError
from stilltide.schemas.decisions import (
    ABORTED,
    COMMITTED,
    IDENTITY_KEY,
    TABLE,
    commit_statement_with_identity,
)
from tests.simulation.databases.database import Answer, Database, DatabaseError, Key, Session
from tests.simulation.network.paths import Path
from tests.simulation.processes.process import EVERYWHERE

STATEMENT_S = 5.0
"""Time after which a statement without an answer has failed."""

LOCK_WAIT_S = 2.0
"""How long a resolver waits for a row that is not committed."""

CLOSED_S = 2.0
"""Time after which the database notices that a process has died."""

IDENTITY = "0b5c9a64-7d1f-4e8b-9c2d-3f6a1e5b8d70"
_OWN = Key(TABLE, IDENTITY_KEY)

Work = Callable[[Answer], None]
"""A statement; calls its answer when it has been carried out."""


def create_table(database: Database) -> None:
    """Makes the table of decisions, with its identity."""
    database.rows[_OWN] = IDENTITY


class Connection:
    """One transaction of an application, as a connection of asyncpg.

    Args:
        database: the database.
        path: the way of the process to it.
    """

    def __init__(self, database: Database, path: Path) -> None:
        self._database = database
        self._path = path
        self._session: Session | None = None

    async def begin(self) -> None:
        """Connects, and begins a transaction."""

        def work() -> None:
            self._session = self._database.begin()

        await statement(self._path, "begin", _at_once(work))
        self._path.process.on_death.append(self._lost)

    def is_in_transaction(self) -> bool:
        """Whether a statement now is part of a database transaction."""
        return self._session is not None

    async def fetchrow(self, text: str, *values: str) -> tuple[str, bool]:
        """Carries out the statement of `enlist`."""
        assert text == commit_statement_with_identity("$1"), text
        await self.insert(Key(TABLE, values[0]), COMMITTED)
        return IDENTITY, True

    async def insert(self, key: Key, value: str) -> None:
        """Inserts a row; raises `DatabaseError`."""
        assert self._session is not None
        work = partial(self._database.insert, self._session, key, value)
        await statement(self._path, "insert", work)

    async def commit(self) -> None:
        """Commits; after a `DatabaseError` it is unknown whether that took effect."""
        session = self._session
        assert session is not None
        await statement(self._path, "commit", _at_once(partial(self._database.commit, session)))

    async def rollback(self) -> None:
        """Rolls back; raises nothing."""
        with suppress(DatabaseError):
            await statement(self._path, "rollback", _at_once(self._rollback))

    def close(self) -> None:
        """Closes the connection, which rolls back what is not committed."""
        self._path.to(self._rollback)

    def _lost(self) -> None:
        self._path.loop.call_later(CLOSED_S, self._rollback, context=EVERYWHERE)

    def _rollback(self) -> None:
        if self._session is not None:
            self._database.rollback(self._session)


Connection.__module__, Connection.__qualname__ = "asyncpg.connection", "Connection"


@asynccontextmanager
async def transaction(database: Database, path: Path) -> AsyncIterator[Connection]:
    """A database transaction, which is rolled back when the block ends and has not committed it.

    Raises:
        DatabaseError: the database is away.
    """
    connection = Connection(database, path)
    try:
        await connection.begin()
        yield connection
    finally:
        connection.close()


class Table:
    """The table of decisions, as resolvers use it: `DecisionTable`.

    Args:
        database: the database.
        path: the way of the process to it.
    """

    def __init__(self, database: Database, path: Path) -> None:
        self._database = database
        self._path = path

    async def identity(self) -> str:
        """As `DecisionTable.identity`."""
        return (await self._read(lambda: self._database.values([_OWN])))[_OWN]

    async def outcomes(self, token_ids: Sequence[str], identity: str) -> Mapping[str, str]:
        """As `DecisionTable.outcomes`."""
        assert identity == IDENTITY
        keys = [Key(TABLE, it) for it in token_ids]
        rows: dict[Key, str] = await self._read(lambda: self._database.values(keys))
        return {key.name: outcome for key, outcome in rows.items()}

    async def decide(self, token_id: str, identity: str) -> bool:
        """As `DecisionTable.decide`."""
        await self._ask("decide", partial(self._insert_aborted, token_id))
        outcome = (await self.outcomes([token_id], identity)).get(token_id)
        if outcome is None:
            raise RetriableError(f"the row of {token_id} was deleted in between")
        return outcome == COMMITTED

    async def rows(self, after: str, prefix: str, rows_max: int) -> list[str]:
        """As `DecisionTable.rows`."""
        names = await self._read(lambda: self._database.names(TABLE))
        return [it for it in names if it.startswith(prefix) and it > after][:rows_max]

    async def delete(self, token_ids: Sequence[str]) -> None:
        """As `DecisionTable.delete`."""
        keys = [Key(TABLE, it) for it in token_ids]
        await self._ask("delete", _at_once(lambda: self._database.delete(keys)))

    async def close(self) -> None:
        """As `DecisionTable.close`."""

    def _insert_aborted(self, token_id: str, answer: Answer) -> None:
        """Inserts `aborted` unless a row stands, in a database transaction of its own."""
        database = self._database
        session = database.begin()

        def inserted(error: DatabaseError | None) -> None:
            if error is None:
                database.commit(session)
            else:
                database.rollback(session)
            answer(None if error is not None and error.why == "duplicate" else error)

        database.insert(session, Key(TABLE, token_id), ABORTED, inserted)
        self._path.loop.call_later(
            LOCK_WAIT_S, database.wait_no_longer, session, context=EVERYWHERE
        )

    async def _read(self, read: Callable[[], Any]) -> Any:
        values: list[Any] = []
        await self._ask("read", _at_once(lambda: values.append(read())))
        return values[0]

    async def _ask(self, name: str, work: Work) -> None:
        try:
            await statement(self._path, name, work)
        except DatabaseError as error:
            raise RetriableError(f"the database is {error.why}") from error


async def statement(path: Path, name: str, work: Work) -> None:
    """Sends a statement; returns when it was carried out.

    Raises:
        DatabaseError: it has failed, or no answer has come in time: then it may have been, or may
            still be, carried out.
    """
    loop = path.loop
    answered: asyncio.Future[None] = loop.create_future()
    path.trace.note(path.process.name, f"asks the database for {name}")

    def arrived() -> None:
        try:
            work(carried_out)
        except DatabaseError as error:
            carried_out(error)

    def carried_out(error: DatabaseError | None) -> None:
        path.trace.note(path.process.name, f"{name} in the database: {error or 'done'}")
        if error is None:
            path.appended(name)
        path.back(came_back, error)

    def came_back(error: DatabaseError | None) -> None:
        if answered.done() or path.process.is_dead:
            return
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)

    path.to(arrived)
    try:
        async with asyncio.timeout(STATEMENT_S):
            await answered
    except TimeoutError:
        raise DatabaseError("away") from None


def _at_once(work: Callable[[], None]) -> Work:
    """A statement that waits for nothing."""

    def carry_out(answer: Answer) -> None:
        work()
        answer(None)

    return carry_out
