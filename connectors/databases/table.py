"""The table of decisions of a database that SQLAlchemy knows.

*Source*: docs/protocols L4. Statements wait in threads of the table's own, a few at a time: a
database that does not answer holds up nothing else of the process.

*Invariants*: no error or log holds the password of an address.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, bindparam, create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from stilltide.connectors.databases.failures import failure_of
from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.schemas.decisions import (
    ABORT_STATEMENTS,
    COMMITTED,
    DELETE_STATEMENT,
    OUTCOME_QUERY,
    ROWS_QUERY,
    TABLE,
)

T = TypeVar("T")

LOCK_WAIT_S = 2
"""Longest wait for a row that another database transaction has inserted and not committed."""

CONNECT_S = 5

THREADS = 4
"""Statements at a time; further ones wait, and fail while all threads wait for the database."""

WAITING_MAX = 64
"""Statements that wait for a thread; beyond, the database counts as away."""

DELETED_MAX = 500
"""Rows that one statement deletes."""

_DRIVERS = MappingProxyType(
    {
        "postgresql": "postgresql+psycopg",
        "postgres": "postgresql+psycopg",
        "postgresql+asyncpg": "postgresql+psycopg",
        "sqlite+aiosqlite": "sqlite",
        "mysql": "mysql+pymysql",
        "mariadb": "mysql+pymysql",
        "mysql+aiomysql": "mysql+pymysql",
        "mysql+asyncmy": "mysql+pymysql",
    }
)
"""The driver of an address: one that waits by itself, where the application's has to be awaited."""

_LOCK_WAITS = MappingProxyType(
    {
        "postgresql": f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'",
        "mysql": f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_S}",
    }
)

_CONNECT = MappingProxyType(
    {
        "psycopg": {"connect_timeout": CONNECT_S},
        "pymysql": {"connect_timeout": CONNECT_S},
        "pysqlite": {"timeout": LOCK_WAIT_S},
    }
)


class DatabaseTable(DecisionTable):
    """Decisions in one database.

    Args:
        name: name of the database in errors.
        address: URL of SQLAlchemy, such as `postgresql://user:password@host/database`.

    Raises:
        FatalError: the address is no URL, no driver is installed for it, or its dialect is unknown.
    """

    def __init__(self, name: str, address: str) -> None:
        self._name = name
        self._engine = _engine(name, address)
        dialect = self._engine.dialect.name
        self._abort = text(ABORT_STATEMENTS[dialect])
        self._lock_wait = _LOCK_WAITS.get(dialect)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"decisions-{name}")
        self._waiting = 0

    async def decide(self, token_id: str) -> bool:
        """As `DecisionTable.decide`."""

        def insert(db: Connection) -> None:
            if self._lock_wait is not None:
                db.execute(text(self._lock_wait))
            db.execute(self._abort, {"token_id": token_id})

        def outcome(db: Connection) -> str | None:
            return db.execute(text(OUTCOME_QUERY), {"token_id": token_id}).scalar()

        await self._run(insert)
        # In a transaction of its own, which sees what another one has committed meanwhile, at each
        # isolation level.
        stands = await self._run(outcome)
        if stands is None:  # deleted in between: another resolver has ended the transaction
            raise RetriableError(f"the row of {token_id} was deleted in between")
        return stands == COMMITTED

    async def rows(self, after: str, prefix: str, rows_max: int) -> list[str]:
        """As `DecisionTable.rows`."""
        values = {
            "after": max(after, prefix),
            "below": prefix[:-1] + chr(ord(prefix[-1]) + 1),
            "rows_max": rows_max,
        }
        return await self._run(lambda db: list(db.execute(text(ROWS_QUERY), values).scalars()))

    async def delete(self, token_ids: Sequence[str]) -> None:
        """As `DecisionTable.delete`."""
        statement = text(DELETE_STATEMENT).bindparams(bindparam("token_ids", expanding=True))
        for first in range(0, len(token_ids), DELETED_MAX):
            some = list(token_ids[first : first + DELETED_MAX])
            await self._run(lambda db, some=some: db.execute(statement, {"token_ids": some}))

    async def close(self) -> None:
        """As `DecisionTable.close`; a statement that waits is left to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.get_running_loop().run_in_executor(None, self._engine.dispose)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        if self._waiting >= WAITING_MAX:
            raise RetriableError(f"the database {self._name} does not answer")

        def within() -> T:
            with self._engine.begin() as db:
                return work(db)

        self._waiting += 1
        running = asyncio.get_running_loop().run_in_executor(self._threads, within)
        running.add_done_callback(self._done)
        try:
            return await running
        except SQLAlchemyError as error:
            raise self._explained(error) from error

    def _done(self, _: object) -> None:
        self._waiting -= 1

    def _explained(self, error: SQLAlchemyError) -> ConnectorError:
        failure, detail = failure_of(error), str(getattr(error, "orig", None) or error)
        if failure == "missing":
            return FatalError(
                f"the database {self._name} has no table {TABLE}",
                detail=detail,
                hint="make it: `stilltide txn decisions-ddl` prints the statement",
            )
        if failure == "denied":
            return FatalError(
                f"the database {self._name} does not let this user use the table {TABLE}",
                detail=detail,
                hint="grant SELECT, INSERT and DELETE on it",
            )
        if failure == "locked":
            return RetriableError(
                f"a row of {TABLE} in the database {self._name} is not decided yet", detail=detail
            )
        return RetriableError(f"the database {self._name} is away", detail=detail)


def _engine(name: str, address: str) -> Engine:
    url = _url(name, address)
    if url.get_backend_name() not in ABORT_STATEMENTS:
        raise FatalError(
            f"the address of the database {name} is of {url.get_backend_name()}",
            hint=f"rows of these can decide: {', '.join(ABORT_STATEMENTS)}",
        )
    if url.get_backend_name() == "sqlite" and url.database in {None, "", ":memory:"}:
        raise FatalError(
            f"the database {name} is in the memory of this process, so nobody else decides in it",
            hint="name its file: sqlite:////var/lib/orders.sqlite",
        )
    connect: dict[str, Any] = dict(_CONNECT.get(url.get_driver_name(), {}))
    try:
        return create_engine(
            url, connect_args=connect, pool_size=THREADS, max_overflow=0, pool_pre_ping=True
        )
    except ModuleNotFoundError as error:
        raise FatalError(
            f"the driver of the database {name} is not installed: {error.name}",
            hint=f"run pip install {error.name}",
        ) from error


def _url(name: str, address: str) -> URL:
    try:
        given = make_url(address)
    except ArgumentError:
        raise _no_address(name) from None  # the cause carries the text
    url = given.set(drivername=_DRIVERS.get(given.drivername, given.drivername))
    try:
        url.get_dialect()
    except SQLAlchemyError as error:  # no dialect of this name
        raise _no_address(name, str(error)) from None
    return url


def _no_address(name: str, detail: str = "") -> FatalError:
    return FatalError(
        f"the address of the database {name} is none that SQLAlchemy knows",
        detail=detail,
        hint="for example postgresql://user:password@host/database, or sqlite:////path/orders.db",
    )
