"""Connections of database libraries, as applications have them: one adapter for each kind.

*Source*: docs/protocols L4.

*Invariants*: the row is inserted in the application's own database transaction; a connection that
commits each statement by itself is refused before anything is inserted. Nothing uses the connection
after the insert. No library is imported that the application has not imported.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stilltide.connectors.databases.failures import failure_of
from stilltide.connectors.errors import NoDecisionsTableError
from stilltide.pipeline.errors import (
    ArgumentError,
    DecidedError,
    NoDatabaseTransactionError,
)
from stilltide.schemas.decisions import (
    DDL,
    IDENTITY_QUERY,
    TABLE,
    commit_statement,
    commit_statement_with_identity,
)

Statements = Generator[tuple[str, Sequence[str]], Sequence[Any] | None, Any]
"""Statements with their values; the first row of each comes back, and the end returns a value."""


@dataclass(frozen=True, slots=True)
class PlainConnection:
    """Connections of one database library.

    Attributes:
        awaited: whether calls have to be awaited.
        dialect: whose SQL the database speaks.
        first_row: runs a statement with its values; the first row, or None without rows.
        placeholder: what stands in a statement for its first value.
        in_transaction: whether a statement now is part of a database transaction.
    """

    awaited: bool
    dialect: str
    first_row: Callable[[Any, str, Sequence[str]], Any]
    placeholder: str
    in_transaction: Callable[[Any], bool]

    def insert(self, db: Any, token_id: str) -> Any:
        """Inserts the application's row; returns the table's identity; to be awaited if `awaited`.

        Raises:
            NoDatabaseTransactionError: the row would be committed by itself, and was not inserted;
                or it is part of a savepoint.
            NoDecisionsTableError: the table has no identity.
        """
        if not self.in_transaction(db):
            raise no_transaction()
        return self._run(db, _insert(self.dialect, self.placeholder, token_id))

    def create_table(self, db: Any) -> Any:
        """Makes the table where there is none; to be awaited if `awaited`."""
        return self._run(db, _create_table(self.dialect))

    def _run(self, db: Any, statements: Statements) -> Any:
        first_row = self.first_row
        if self.awaited:
            return _run_awaited(db, statements, first_row)
        return _run(db, statements, first_row)


@dataclass(frozen=True, slots=True)
class AlchemyConnection:
    """Connections and sessions of SQLAlchemy 2.

    Attributes:
        awaited: whether calls have to be awaited.
    """

    awaited: bool

    def insert(self, db: Any, token_id: str) -> Any:
        """As `PlainConnection.insert`."""

        def insert(db: Any) -> Any:
            connection = _in_transaction(db)
            statements = _insert(_dialect(connection), ":token_id", token_id, by_library=True)
            return _run(connection, statements, _first_row_of_alchemy)

        return db.run_sync(insert) if self.awaited else insert(db)

    def create_table(self, db: Any) -> Any:
        """As `PlainConnection.create_table`."""

        def create(db: Any) -> Any:
            connection = _connection(db)
            return _run(connection, _create_table(_dialect(connection)), _first_row_of_alchemy)

        return db.run_sync(create) if self.awaited else create(db)


def _insert(
    dialect: str, placeholder: str, token_id: str, *, by_library: bool = False
) -> Statements:
    """With `by_library` the library has said that the connection is in no savepoint.

    SQLAlchemy leaves savepoints open that were rolled back, which nobody goes back to any more.
    """
    if dialect == "postgresql":
        row = yield commit_statement_with_identity(placeholder), [token_id]
        assert row is not None, "RETURNING"
        identity, outermost = row
        if not (outermost or by_library):
            raise _in_savepoint()
    else:
        yield commit_statement(placeholder), [token_id]
        row = yield IDENTITY_QUERY, []
        identity = row[0] if row else None
    if identity is None:
        raise NoDecisionsTableError(
            f"the table {TABLE} of the connection's database has no identity", hint=_MAKE
        )
    return identity.decode() if isinstance(identity, bytes) else str(identity)


def _create_table(dialect: str) -> Statements:
    for statement in DDL[dialect]:
        yield statement, []


def _run(db: Any, statements: Statements, first_row: Callable[..., Any]) -> Any:
    row: Any = None
    try:
        while True:
            statement, values = statements.send(row)
            row = first_row(db, statement, values)
    except StopIteration as end:
        return end.value


async def _run_awaited(db: Any, statements: Statements, first_row: Callable[..., Any]) -> Any:
    row: Any = None
    try:
        while True:
            statement, values = statements.send(row)
            row = await first_row(db, statement, values)
    except StopIteration as end:
        return end.value


def _in_transaction(db: Any) -> Any:
    """The connection of a session, or the connection itself, in a database transaction."""
    connection = _connection(db)
    if not connection.in_transaction():
        connection.begin()  # what the first statement does by itself
    if connection.in_nested_transaction():
        raise _in_savepoint()
    if _commits_each(connection):
        raise no_transaction()
    return connection


def _dialect(connection: Any) -> str:
    name = str(connection.dialect.name)
    dialect = {"mariadb": "mysql"}.get(name, name)
    if dialect not in DDL:
        raise ArgumentError(
            f"the database speaks {dialect}", hint=f"use a database of these: {', '.join(DDL)}"
        )
    return dialect


def _connection(db: Any) -> Any:
    """The connection of a session, or the connection itself."""
    return db.connection() if callable(getattr(db, "connection", None)) else db


def _commits_each(connection: Any) -> bool:
    """Whether the connection below one of SQLAlchemy commits each statement by itself."""
    pooled = connection.connection
    if connection.dialect.name == "sqlite":
        return not _sqlite_in_transaction(pooled.driver_connection)
    raw = pooled.dbapi_connection
    if callable(getattr(raw, "get_autocommit", None)):
        return bool(raw.get_autocommit())
    return getattr(raw, "autocommit", False) is True


def _sqlite_in_transaction(db: Any) -> bool:
    autocommit = getattr(db, "autocommit", None)
    if isinstance(autocommit, bool):  # Python 3.12; a number stands for the former way
        return not autocommit
    return db.in_transaction or db.isolation_level is not None


def _psycopg_in_transaction(db: Any) -> bool:
    return not db.autocommit or db.info.transaction_status.name != "IDLE"


def _first_row_of_alchemy(db: Any, statement: str, values: Sequence[str]) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - the application has imported it

    result = db.execute(text(statement), {"token_id": values[0]} if values else {})
    return result.first() if result.returns_rows else None


def _first_row_of_psycopg(db: Any, statement: str, values: Sequence[str]) -> Any:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - the application has imported it

    with db.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(statement, values)
        return cursor.fetchone() if cursor.description else None


async def _first_row_of_psycopg_async(db: Any, statement: str, values: Sequence[str]) -> Any:
    from psycopg.rows import tuple_row  # noqa: PLC0415 - the application has imported it

    async with db.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchone() if cursor.description else None


def _first_row_of_asyncpg(db: Any, statement: str, values: Sequence[str]) -> Any:
    return db.fetchrow(statement, *values)


def _first_row_of_sqlite(db: Any, statement: str, values: Sequence[str]) -> Any:
    cursor = db.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, values).fetchone()


async def _first_row_of_aiosqlite(db: Any, statement: str, values: Sequence[str]) -> Any:
    async with db.cursor() as cursor:
        cursor.row_factory = None
        await cursor.execute(statement, values)
        return await cursor.fetchone()


_ASYNCPG = PlainConnection(
    True, "postgresql", _first_row_of_asyncpg, "$1", lambda db: db.is_in_transaction()
)

_KINDS: MappingProxyType[str, PlainConnection | AlchemyConnection] = MappingProxyType(
    {
        "sqlalchemy.engine.base.Connection": AlchemyConnection(awaited=False),
        "sqlalchemy.orm.session.Session": AlchemyConnection(awaited=False),
        "sqlalchemy.ext.asyncio.engine.AsyncConnection": AlchemyConnection(awaited=True),
        "sqlalchemy.ext.asyncio.session.AsyncSession": AlchemyConnection(awaited=True),
        "psycopg.Connection": PlainConnection(
            False, "postgresql", _first_row_of_psycopg, "%s", _psycopg_in_transaction
        ),
        "psycopg.AsyncConnection": PlainConnection(
            True, "postgresql", _first_row_of_psycopg_async, "%s", _psycopg_in_transaction
        ),
        "asyncpg.connection.Connection": _ASYNCPG,
        "asyncpg.pool.PoolConnectionProxy": _ASYNCPG,
        "sqlite3.Connection": PlainConnection(
            False, "sqlite", _first_row_of_sqlite, "?", _sqlite_in_transaction
        ),
        "aiosqlite.core.Connection": PlainConnection(
            True, "sqlite", _first_row_of_aiosqlite, "?", _sqlite_in_transaction
        ),
    }
)
"""How each kind of connection is used, by the name of its class or of a class above it."""

KNOWN = "SQLAlchemy, psycopg, asyncpg, sqlite3 and aiosqlite"


def kind_of(db: object) -> PlainConnection | AlchemyConnection:
    """How a connection is used.

    Raises:
        ArgumentError: the value is no connection of a library that is known.
    """
    for cls in type(db).__mro__:
        kind = _KINDS.get(f"{cls.__module__}.{cls.__qualname__}")
        if kind is not None:
            return kind
    raise ArgumentError(
        f"a {type(db).__module__}.{type(db).__qualname__} is no database connection that is known",
        hint=f"give a connection, or a session, of {KNOWN}; Django's is `connection.connection`",
    )


def explained(error: Exception, token_id: str) -> Exception:
    """The error to raise for an error of the row's insert."""
    failure = failure_of(error)
    if failure == "missing":
        return NoDecisionsTableError(
            f"the database has no table {TABLE}",
            detail=str(error),
            hint=_MAKE,
        )
    if failure == "duplicate":
        return DecidedError(
            f"the table {TABLE} says already how the transaction {token_id} ends",
            detail=str(error),
            hint="roll the database transaction back, and do the work again in new transactions; "
            "`enlist` is called once in each",
        )
    return error


def no_transaction() -> NoDatabaseTransactionError:
    """The error of a row that would be committed by itself."""
    return NoDatabaseTransactionError(
        "the database connection commits each statement by itself (autocommit)",
        detail="no row was inserted, and nothing was prepared",
        hint="begin a database transaction first, as in `async with db.begin():`, and enlist "
        "inside",
    )


def _in_savepoint() -> NoDatabaseTransactionError:
    return NoDatabaseTransactionError(
        "the connection is inside of a savepoint, which may end otherwise than its transaction",
        detail="nothing was prepared. A nested transaction of asyncpg that was rolled back leaves "
        "its savepoint open",
        hint="let this database transaction fail, and call `enlist` after the savepoint, as the "
        "last step of the database transaction",
    )


_MAKE = (
    "make it once: `await decisions.create_table(db)`, or by your migrations with the text of "
    "`stilltide txn decisions-ddl`"
)
