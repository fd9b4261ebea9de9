"""Connections of every kind that applications have, in a database transaction and without one."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiosqlite
import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from tests.support.databases.mariadb import MariaDbServer
from tests.support.databases.postgres import WAIT_S, PostgresServer

Opening = Callable[["Place", bool], AbstractAsyncContextManager[Any]]
"""Opens a connection; with True in a database transaction, which the end of the block commits."""


class Place(NamedTuple):
    """Where the databases of a test are."""

    server: PostgresServer
    folder: Path
    mariadb: Callable[[], MariaDbServer]

    @property
    def sqlite(self) -> str:
        """Path of the SQLite database."""
        return str(self.folder / "tests.sqlite")

    def mysql(self, driver: str) -> str:
        """Address of the MySQL database, which has the name of the folder's inode."""
        server, name = self.mariadb(), f"d{self.folder.stat().st_ino}"
        server.make_database(name)
        return server.url(driver, name)

    def address(self, kind: str) -> str:
        """The address, for `Decisions` and resolvers, of the database of a kind of connection."""
        if "mysql" in kind:
            return self.mysql("pymysql")
        return f"sqlite:///{self.sqlite}" if "sqlite" in kind else self.server.conninfo


@asynccontextmanager
async def _psycopg(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
    with psycopg.connect(place.server.conninfo, autocommit=not within) as db:
        yield db


@asynccontextmanager
async def _psycopg_async(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
    async with await psycopg.AsyncConnection.connect(place.server.conninfo, autocommit=True) as db:
        if within:
            async with db.transaction():
                yield db
        else:
            yield db


@asynccontextmanager
async def _asyncpg(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
    server = place.server
    options = {"host": str(server.folder), "user": server.user, "timeout": WAIT_S}
    db = await asyncpg.connect(database="postgres", **options)
    try:
        if within:
            async with db.transaction():
                yield db
        else:
            yield db
    finally:
        await db.close()


@asynccontextmanager
async def _asyncpg_pool(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
    server = place.server
    pool = asyncpg.create_pool(
        host=str(server.folder),
        user=server.user,
        database="postgres",
        timeout=WAIT_S,
        min_size=1,
        max_size=1,
    )
    async with pool, pool.acquire() as db:
        if within:
            async with db.transaction():
                yield db
        else:
            yield db


@asynccontextmanager
async def _sqlite(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
    db = sqlite3.connect(place.sqlite, isolation_level="DEFERRED" if within else None)
    try:
        with db:
            yield db
    finally:
        db.close()


@asynccontextmanager
async def _aiosqlite(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
    async with aiosqlite.connect(place.sqlite, isolation_level=None) as db:
        if within:
            await db.execute("BEGIN")
        yield db
        await db.commit()


def _alchemy(url: Callable[[Place], str], *, session: bool) -> Opening:
    @asynccontextmanager
    async def opened(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
        options: dict[str, Any] = {} if within else {"isolation_level": "AUTOCOMMIT"}
        engine = create_engine(url(place), **options)
        try:
            with Session(engine) if session else engine.connect() as db:
                yield db
                db.commit()
        finally:
            engine.dispose()

    return opened


def _alchemy_async(url: Callable[[Place], str], *, session: bool) -> Opening:
    @asynccontextmanager
    async def opened(place: Place, within: bool) -> AsyncIterator[Any]:  # noqa: FBT001
        options: dict[str, Any] = {} if within else {"isolation_level": "AUTOCOMMIT"}
        if "asyncpg" in url(place):
            options["connect_args"] = {"timeout": WAIT_S}
        engine = create_async_engine(url(place), **options)
        try:
            async with AsyncSession(engine) if session else engine.connect() as db:
                yield db
                await db.commit()
        finally:
            await engine.dispose()

    return opened


KINDS: dict[str, Opening] = {
    "psycopg": _psycopg,
    "psycopg-async": _psycopg_async,
    "asyncpg": _asyncpg,
    "asyncpg-pool": _asyncpg_pool,
    "sqlite3": _sqlite,
    "aiosqlite": _aiosqlite,
    "alchemy-psycopg": _alchemy(lambda it: it.server.url("psycopg"), session=False),
    "alchemy-session": _alchemy(lambda it: it.server.url("psycopg"), session=True),
    "alchemy-sqlite": _alchemy(lambda it: f"sqlite:///{it.sqlite}", session=False),
    "alchemy-asyncpg": _alchemy_async(lambda it: it.server.url("asyncpg"), session=False),
    "alchemy-psycopg-async": _alchemy_async(lambda it: it.server.url("psycopg"), session=True),
    "alchemy-aiosqlite": _alchemy_async(
        lambda it: f"sqlite+aiosqlite:///{it.sqlite}", session=True
    ),
    "alchemy-pymysql": _alchemy(lambda it: it.mysql("pymysql"), session=False),
    "alchemy-pymysql-session": _alchemy(lambda it: it.mysql("pymysql"), session=True),
    "alchemy-aiomysql": _alchemy_async(lambda it: it.mysql("aiomysql"), session=True),
}
"""How each kind of connection is opened."""

BLOCKING = (
    "psycopg",
    "sqlite3",
    "alchemy-psycopg",
    "alchemy-session",
    "alchemy-sqlite",
    "alchemy-pymysql",
    "alchemy-pymysql-session",
)
"""The kinds whose calls are not awaited."""


async def rows(kind: str, place: Place) -> dict[str, str]:
    """The rows of the table of decisions that are committed: outcome, by key."""
    query = "SELECT token_id, outcome FROM stilltide_decisions WHERE token_id <> 'identity'"
    if "sqlite" in kind:
        db = sqlite3.connect(place.sqlite)
        try:
            return dict(db.execute(query).fetchall())
        finally:
            db.close()
    if "mysql" in kind:
        engine = create_engine(place.mysql("pymysql"))
        with engine.connect() as db:
            outcomes = dict(map(tuple, db.execute(text(query))))
        engine.dispose()
        return outcomes
    with psycopg.connect(place.server.conninfo) as connection:
        return dict(connection.execute(query).fetchall())
