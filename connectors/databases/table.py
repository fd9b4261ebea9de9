"""The table of decisions of a database that SQLAlchemy knows.

*Source*: docs/protocols L4, L6. Statements wait in threads of the table's own, a few at a time: a
database that does not answer holds up nothing else of the process.

*Invariants*: no error or log holds the password of an address; no statement keeps its thread and
its connection for ever.
"""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, bindparam, create_engine, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from stilltide.connectors.databases.failures import failure_of
from stilltide.connectors.errors import (
    ConnectorError,
    FatalError,
    NoDecisionsTableError,
    OtherTableError,
    RetriableError,
)
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.schemas.decisions import (
    ABORT_STATEMENTS,
    COMMITTED,
    DELETE_STATEMENT,
    IDENTITY_KEY,
    OUTCOMES_QUERY,
    ROWS_QUERY,
    TABLE,
    is_identity,
)

T = TypeVar("T")

LOCK_WAIT_S = 2
"""Longest wait for a row that another database transaction has inserted and not committed."""

CONNECT_S = 5

THREADS = 4
"""Statements at a time; further ones wait, and fail while all threads wait for the database."""

RECYCLE_S = 1_800
"""Age at which a connection is replaced; some databases and proxies close old ones."""

WAITING_MAX = 64
"""Statements that wait for a thread; beyond, the database counts as away."""

KEYS_MAX = 500
"""Keys that one statement names."""

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

SILENCE_S = 10
"""Longest wait for a statement, and for a host that has gone without a word."""

CANCEL_S = 1.0
"""Longest wait for the end of a cancelled statement; beyond, its connection is cut."""

_LIBPQ = {
    "client_encoding": "utf8",  # a database without an encoding (SQL_ASCII) says bytes for text
    "connect_timeout": CONNECT_S,
    "tcp_user_timeout": SILENCE_S * 1000,
    "keepalives_idle": SILENCE_S // 2,
    "keepalives_interval": 1,
    "keepalives_count": SILENCE_S // 2,
}

_CONNECT: MappingProxyType[str, Mapping[str, object]] = MappingProxyType(
    {
        # Poolers that lend a connection for one transaction know no prepared statements.
        "psycopg": {**_LIBPQ, "prepare_threshold": None},
        "psycopg2": _LIBPQ,
        "pymysql": {
            "connect_timeout": CONNECT_S,
            "read_timeout": SILENCE_S,
            "init_command": f"SET SESSION lock_wait_timeout = {LOCK_WAIT_S}",
        },
        "pysqlite": {"timeout": LOCK_WAIT_S},
    }
)

_OF_ASYNCPG = MappingProxyType({"ssl": "sslmode", "timeout": "connect_timeout"})
"""Options of an address of asyncpg, and what libpq calls them; libpq refuses others."""


class _Statement:
    """Work of a thread in a database, which another thread may end.

    Attributes:
        overdue: whether the work was ended because the database did not answer in time.
    """

    def __init__(self) -> None:
        self.overdue = False
        self._connection: Any = None
        self._began_s = 0.0
        self._ended = threading.Event()

    def run(self, engine: Engine, work: Callable[[Connection], T]) -> T:
        """Does the work in a database transaction, if the engine begins one."""
        try:
            with engine.begin() as db:
                self._began_s = time.monotonic()
                self._connection = db.connection.driver_connection
                return work(db)
        finally:
            self._connection = None

    def ended(self) -> None:
        """The work is over, whether it was done or not."""
        self._ended.set()

    @property
    def left_s(self) -> float:
        """Seconds until the work is overdue; work that waits for a thread is not."""
        if self._connection is None:
            return SILENCE_S
        return self._began_s + SILENCE_S - time.monotonic()

    def end(self) -> None:
        """Has the database cancel the statement, else cuts its connection; blocks for seconds.

        A cut connection alone would leave a statement in the database that waits for a lock, and
        each try would leave one more.
        """
        connection, self.overdue = self._connection, True
        with suppress(Exception):  # of a driver, which may be any; the connection is cut then
            if hasattr(connection, "cancel_safe"):  # psycopg's
                connection.cancel_safe(timeout=CONNECT_S)
            elif hasattr(connection, "cancel"):  # psycopg2's
                connection.cancel()
        if not self._ended.wait(CANCEL_S) and hasattr(connection, "fileno"):
            with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as stream:
                stream.shutdown(socket.SHUT_RDWR)


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
        self._each = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._abort = text(ABORT_STATEMENTS[dialect])
        self._outcomes = text(OUTCOMES_QUERY).bindparams(bindparam("token_ids", expanding=True))
        self._lock_wait = _LOCK_WAITS.get(dialect)
        self._threads = _threads(name)
        self._waiting = 0

    async def identity(self) -> str:
        """As `DecisionTable.identity`."""
        return self._identity_in(await self._run(lambda db: self._read(db, [])))

    async def outcomes(self, token_ids: Sequence[str], identity: str) -> Mapping[str, str]:
        """As `DecisionTable.outcomes`."""
        rows: dict[str, str] = {}
        for first in range(0, len(token_ids), KEYS_MAX):
            some = token_ids[first : first + KEYS_MAX]
            rows |= await self._run(lambda db, some=some: self._read(db, some))
            self._check(rows, identity)
        return rows

    async def decide(self, token_id: str, identity: str) -> bool:
        """As `DecisionTable.decide`."""
        if not identity:
            raise OtherTableError(
                f"a transaction names {self._name}, but no table there: its program has prepared it"
                " without `enlist`",
                hint="its program decides by the token, or you by `stilltide txn commit|abort "
                "--prepared ID --reason TEXT`",
            )
        values = {"token_id": token_id, "identity": identity}

        def insert(db: Connection) -> None:
            if self._lock_wait is not None:
                db.execute(text(self._lock_wait))
            db.execute(self._abort, values)

        await self._run(insert, self._engine)
        # In a transaction of its own, which sees what another one has committed meanwhile, at each
        # isolation level.
        stands = (await self.outcomes([token_id], identity)).get(token_id)
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
        for first in range(0, len(token_ids), KEYS_MAX):
            some = list(token_ids[first : first + KEYS_MAX])
            await self._run(lambda db, some=some: db.execute(statement, {"token_ids": some}))

    async def close(self) -> None:
        """As `DecisionTable.close`; a statement that waits is left to its end."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = _threads(self._name)
        await asyncio.get_running_loop().run_in_executor(None, self._engine.dispose)

    def _read(self, db: Connection, token_ids: Sequence[str]) -> dict[str, str]:
        """The rows of keys, and the one of the identity, by key."""
        values = {"token_ids": [IDENTITY_KEY, *token_ids]}
        rows = db.execute(self._outcomes, values)
        return {row.token_id: row.outcome for row in rows}

    def _identity_in(self, rows: Mapping[str, str]) -> str:
        if not is_identity(identity := rows.get(IDENTITY_KEY, "")):
            raise NoDecisionsTableError(
                f"the table {TABLE} of the database {self._name} has no identity",
                detail=f"the outcome of its row `{IDENTITY_KEY}` is {identity!r}" * bool(identity),
                hint="make it: `stilltide txn decisions-ddl` prints the statements",
            )
        return identity

    def _check(self, rows: Mapping[str, str], identity: str) -> None:
        if (actual := self._identity_in(rows)) != identity:
            raise OtherTableError(
                f"the address of the database {self._name} is that of another database",
                detail=f"its table {TABLE} has the identity {actual}, the transaction's {identity}",
                hint=f"correct the address of {self._name}; nothing was decided",
            )

    async def _run(self, work: Callable[[Connection], T], engine: Engine | None = None) -> T:
        """Runs statements in a thread; in a database transaction if the engine begins one.

        A connection of the pool may have been closed by the database meanwhile, or lead to a server
        that a fail-over has made a replica. Every work here may be done twice, so it is done again
        on another one, instead of a question before each work.
        """
        if self._waiting >= WAITING_MAX:
            raise RetriableError(f"the database {self._name} does not answer")

        statement = _Statement()

        def run() -> T:
            try:
                return statement.run(engine or self._each, work)
            except DBAPIError as error:
                is_read_only = failure_of(error) == "read_only"
                if statement.overdue or not (is_read_only or error.connection_invalidated):
                    raise
                if is_read_only:
                    self._engine.dispose()  # all of the pool lead to where this one does
                return statement.run(engine or self._each, work)
            finally:
                statement.ended()

        self._waiting += 1
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self._threads, run)
        running.add_done_callback(self._done)
        watched = loop.call_later(SILENCE_S, _watch, loop, statement, running)
        running.add_done_callback(lambda _: watched.cancel())
        try:
            return await asyncio.shield(running)  # a thread that waits counts, whoever gives up
        except SQLAlchemyError as error:
            if statement.overdue:
                raise RetriableError(
                    f"the database {self._name} does not answer", detail=str(error)
                ) from error
            raise self._explained(error) from error
        except Exception as error:  # of a driver, which may be any
            raise RetriableError(
                f"the database {self._name} cannot be asked: {type(error).__name__}",
                detail=str(error),
            ) from error

    def _done(self, running: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not running.cancelled():
            running.exception()  # nobody may have waited for it

    def _explained(self, error: SQLAlchemyError) -> ConnectorError:
        failure, detail = failure_of(error), str(getattr(error, "orig", None) or error)
        if failure == "missing":
            return NoDecisionsTableError(
                f"the database {self._name} has no table {TABLE}",
                detail=detail,
                hint="make it: `stilltide txn decisions-ddl` prints the statements",
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
        if failure == "read_only":
            return RetriableError(
                f"the database {self._name} takes no writes",
                detail=detail,
                hint="its address has to be that of the server that takes writes; a fail-over may "
                "be on its way",
            )
        return RetriableError(f"the database {self._name} is away", detail=detail)


def _watch(
    loop: asyncio.AbstractEventLoop, statement: _Statement, running: asyncio.Future[Any]
) -> None:
    """Ends a statement that is overdue, in a thread of its own; else looks again."""
    if running.done():
        return
    if (left_s := statement.left_s) > 0:
        loop.call_later(left_s, _watch, loop, statement, running)
    else:
        threading.Thread(target=statement.end, name="decisions-overdue", daemon=True).start()


def _threads(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix=f"decisions-{name}")


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
            url, connect_args=connect, pool_size=THREADS, max_overflow=0, pool_recycle=RECYCLE_S
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
    if given.drivername == "postgresql+asyncpg":
        known = {_OF_ASYNCPG.get(key, key): value for key, value in given.query.items()}
        known.pop("prepared_statement_cache_size", None)
        url = url.set(query=known)
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
