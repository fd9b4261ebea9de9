"""Connections of database libraries, as applications have them: one adapter for each kind.

*Source*: docs/protocols L4.

*Invariants*: the row is inserted in the application's own database transaction; a connection that
commits each statement by itself is refused before anything is inserted. No library is imported
that the application has not imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from stilltide.connectors.databases.failures import failure_of
from stilltide.pipeline.errors import (
    ArgumentError,
    DecidedError,
    NoDatabaseTransactionError,
    NoDecisionsTableError,
)
from stilltide.schemas.decisions import DDL, TABLE, commit_statement

_BEGIN = "begin a database transaction first, as in `async with db.begin():`, and enlist inside"


@dataclass(frozen=True, slots=True)
class PlainConnection:
    """Connections of one database library.

    Attributes:
        awaited: whether calls have to be awaited.
        dialect: whose SQL the database speaks.
        execute: runs a statement with its values.
        placeholder: what stands in a statement for its first value.
        in_transaction: whether a statement now is part of a database transaction.
    """

    awaited: bool
    dialect: str
    execute: Callable[..., Any]
    placeholder: str
    in_transaction: Callable[[Any], bool]

    def insert(self, db: Any, token_id: str) -> Any:
        """Inserts the application's row; to be awaited if `awaited`.

        Raises:
            NoDatabaseTransactionError: the row would be committed by itself; it was not inserted.
        """
        if not self.in_transaction(db):
            raise no_transaction()
        return self.execute(db, commit_statement(self.placeholder), token_id)

    def create_table(self, db: Any) -> Any:
        """Makes the table where there is none; to be awaited if `awaited`."""
        return self.execute(db, DDL[self.dialect])


@dataclass(frozen=True, slots=True)
class AlchemyConnection:
    """Connections and sessions of SQLAlchemy 2.

    Attributes:
        awaited: whether calls have to be awaited.
    """

    awaited: bool

    def insert(self, db: Any, token_id: str) -> Any:
        """As `PlainConnection.insert`."""
        return self._run(db, partial(_insert, token_id=token_id))

    def create_table(self, db: Any) -> Any:
        """As `PlainConnection.create_table`."""
        return self._run(db, _create_table)

    def _run(self, db: Any, work: Callable[[Any], None]) -> Any:
        return db.run_sync(work) if self.awaited else work(db)


def _insert(db: Any, token_id: str) -> None:
    from sqlalchemy import text  # noqa: PLC0415 - the application has imported it

    connection = _connection(db)
    if not connection.in_transaction():
        connection.begin()  # what the first statement does by itself
    if connection.in_nested_transaction():
        raise NoDatabaseTransactionError(
            "the connection is inside of a savepoint, which may end otherwise than its transaction",
            hint="call `enlist` after the savepoint, as the last step of the database transaction",
        )
    if _commits_each(connection):
        raise no_transaction()
    connection.execute(text(commit_statement(":token_id")), {"token_id": token_id})


def _create_table(db: Any) -> None:
    from sqlalchemy import text  # noqa: PLC0415 - the application has imported it

    connection = _connection(db)
    name = str(connection.dialect.name)
    dialect = {"mariadb": "mysql"}.get(name, name)
    if dialect not in DDL:
        raise ArgumentError(
            f"the database speaks {dialect}", hint=f"use a database of these: {', '.join(DDL)}"
        )
    connection.execute(text(DDL[dialect]))


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


def _with_values(db: Any, statement: str, *values: str) -> Any:
    return db.execute(statement, values)


def _with_arguments(db: Any, statement: str, *values: str) -> Any:
    return db.execute(statement, *values)


def _postgresql(
    execute: Callable[..., Any], mark: str, within: Callable[[Any], bool], *, awaited: bool
) -> PlainConnection:
    return PlainConnection(awaited, "postgresql", execute, mark, within)


_ASYNCPG = _postgresql(_with_arguments, "$1", lambda db: db.is_in_transaction(), awaited=True)

_KINDS: MappingProxyType[str, PlainConnection | AlchemyConnection] = MappingProxyType(
    {
        "sqlalchemy.engine.base.Connection": AlchemyConnection(awaited=False),
        "sqlalchemy.orm.session.Session": AlchemyConnection(awaited=False),
        "sqlalchemy.ext.asyncio.engine.AsyncConnection": AlchemyConnection(awaited=True),
        "sqlalchemy.ext.asyncio.session.AsyncSession": AlchemyConnection(awaited=True),
        "psycopg.Connection": _postgresql(
            _with_values, "%s", _psycopg_in_transaction, awaited=False
        ),
        "psycopg.AsyncConnection": _postgresql(
            _with_values, "%s", _psycopg_in_transaction, awaited=True
        ),
        "asyncpg.connection.Connection": _ASYNCPG,
        "asyncpg.pool.PoolConnectionProxy": _ASYNCPG,
        "sqlite3.Connection": PlainConnection(
            False, "sqlite", _with_values, "?", _sqlite_in_transaction
        ),
        "aiosqlite.core.Connection": PlainConnection(
            True, "sqlite", _with_values, "?", _sqlite_in_transaction
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
            hint="make it once: `await decisions.create_table(db)`, or by your migrations with the "
            "text of `stilltide txn decisions-ddl`",
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
        "the database connection commits each statement by itself (autocommit)", hint=_BEGIN
    )
