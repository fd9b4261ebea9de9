"""An application under fault: a row and some records in each transaction, without an end.

Which library writes to the database is drawn; several callers share a client. Each caller keeps in
a file of the application what it was told, one line for each transaction.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import asyncpg
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from stilltide.databases import Decisions
from stilltide.pipeline.client import Transaction, TransactionClient
from stilltide.schemas.errors import StilltideError
from stilltide.sync import Decisions as SyncDecisions
from stilltide.sync import TransactionClient as SyncTransactionClient
from tests.chaos.prepared.points import Hooks, Point
from tests.support.looks import between_looks, block_between_looks, lasting

CALLERS = 4
DECIDER = "orders-db"
TIMEOUT_S = 6.0
"""Of a transaction: what a killed application leaves open ends soon."""

ORDER = "INSERT INTO orders (id, slow) VALUES ('{id}', {slow})"
"""A row that is slow takes its time when the database commits."""

FAILURES = (StilltideError, SQLAlchemyError, psycopg.Error, asyncpg.PostgresError, OSError)
FAILURES += (asyncpg.InterfaceError, asyncpg.InternalClientError, TimeoutError)


class Place(NamedTuple):
    """Where an application works.

    Attributes:
        bootstrap: the broker.
        database: address of PostgreSQL, as psycopg and asyncpg take it.
        topics: of the records.
        folder: of the campaign.
    """

    bootstrap: str
    database: str
    topics: list[str]
    folder: Path


class Connection(NamedTuple):
    """A connection in a database transaction, of whichever library."""

    db: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]


@asynccontextmanager
async def _psycopg(place: Place) -> AsyncIterator[Connection]:
    async with await psycopg.AsyncConnection.connect(place.database) as db:
        yield Connection(db, db.execute, db.commit)


@asynccontextmanager
async def _asyncpg(place: Place) -> AsyncIterator[Connection]:
    db = await asyncpg.connect(place.database, timeout=20)
    try:
        begun = db.transaction()
        await begun.start()
        yield Connection(db, db.execute, begun.commit)
    finally:
        db.terminate()


@asynccontextmanager
async def _alchemy(place: Place) -> AsyncIterator[Connection]:
    engine = create_async_engine(_url(place, "asyncpg"), connect_args={"timeout": 20})
    try:
        async with AsyncSession(engine) as db:
            yield Connection(db, lambda statement: db.execute(text(statement)), db.commit)
    finally:
        await engine.dispose()


def _url(place: Place, driver: str) -> str:
    return place.database.replace("postgresql:", f"postgresql+{driver}:")


KINDS: tuple[Callable[[Place], AbstractAsyncContextManager[Connection]], ...] = (
    _psycopg,
    _asyncpg,
    _alchemy,
)


@contextmanager
def _blocking_psycopg(place: Place) -> Any:
    with psycopg.connect(place.database) as db:
        yield Connection(db, db.execute, db.commit)


@contextmanager
def _blocking_alchemy(place: Place) -> Any:
    engine = create_engine(_url(place, "psycopg"))
    try:
        with Session(engine) as db:
            yield Connection(db, lambda statement: db.execute(text(statement)), db.commit)
    finally:
        engine.dispose()


BLOCKING = (_blocking_psycopg, _blocking_alchemy)


class Told:
    """What callers were told, in a file that outlives the process."""

    def __init__(self, place: Place, name: str) -> None:
        self._file = (place.folder / f"{name}.told").open("ab", buffering=0)

    def write(self, outcome: str, key: str) -> None:
        """One line, at once."""
        self._file.write(f"{outcome} {key}\n".encode())


class Caller:
    """One caller of an application: transactions, one after the other."""

    def __init__(self, place: Place, name: str, hooks: Hooks, told: Told) -> None:
        self.place = place
        self.hooks = hooks
        self.random = Random(name)
        self._name = name
        self._told = told
        self._made = 0

    def next(self) -> tuple[str, str]:
        """The key of the next order, and what becomes of it."""
        self._made += 1
        ways = ["commit"] * 30 + ["forget", "forget", "roll back", "raise", "wait"]
        return f"{self._name}-{self._made}", self.random.choice(ways)

    def order(self, key: str) -> str:
        """The statement that writes the row."""
        slow = self.hooks.armed(Point.COMMITTING) or self.random.random() < 0.05
        return ORDER.format(id=key, slow=slow)

    def records(self, key: str) -> list[tuple[str, bytes, bytes]]:
        """Topic, key and value of each record: two or three."""
        count = self.random.choice([2, 3])
        topics = self.place.topics
        return [
            (topics[number % len(topics)], key.encode(), f"{key} {number} {count}".encode())
            for number in range(count)
        ]

    @property
    def paused(self) -> bool:
        """Whether the campaign wants no further transactions."""
        return (self.place.folder / "pause").exists()

    @contextmanager
    def outcome(self, key: str) -> Any:
        """Keeps what the caller is told."""
        try:
            yield
        except FAILURES as error:
            self._told.write(f"failed:{type(error).__name__}", key)
        except GaveUpError:
            self._told.write("gave-up", key)
        else:
            self._told.write("committed", key)

    def pause_s(self) -> float:
        """Time to the next transaction."""
        return self.random.uniform(0.1, 0.5)


class GaveUpError(Exception):
    """The application itself does not go on."""


async def _commit(caller: Caller, connection: Connection) -> None:
    """The database's commit, and its points."""
    hooks = caller.hooks
    hooks.reach(Point.PREPARED)
    committing = asyncio.ensure_future(connection.commit())
    if hooks.armed(Point.COMMITTING):
        await lasting(caller.random.uniform(0, 0.03))
        hooks.reach(Point.COMMITTING)
    await committing
    hooks.reach(Point.COMMITTED)


async def _transact(caller: Caller, client: TransactionClient, decisions: Decisions) -> None:
    key, way = caller.next()
    with caller.outcome(key):
        txn = client.transaction()
        if way == "forget":  # a program with a fault: nobody ends the transaction
            await _write(caller, txn, decisions, key, way)
            raise GaveUpError
        async with txn:
            await _write(caller, txn, decisions, key, way)


async def _write(
    caller: Caller, txn: Transaction, decisions: Decisions, key: str, way: str
) -> None:
    async with caller.random.choice(KINDS)(caller.place) as connection:
        await connection.execute(caller.order(key))
        for topic, record_key, value in caller.records(key):
            await txn.send(topic, value, key=record_key)
        caller.hooks.reach(Point.ROW_DUE)
        await decisions.enlist(txn, connection.db)
        if way == "wait":  # resolvers do not
            await lasting(caller.random.uniform(0.5, 4))
        if way == "roll back":
            raise GaveUpError
        await _commit(caller, connection)
        if way == "raise":
            raise GaveUpError


async def run(place: Place, name: str, hooks: Hooks) -> None:
    """Works until the process is killed."""
    told = Told(place, name)
    decisions = Decisions(DECIDER, place.database)

    async def work(client: TransactionClient, number: int) -> None:
        caller = Caller(place, f"{name}.{number}", hooks, told)
        while True:
            while caller.paused:
                await between_looks()
            await _transact(caller, client, decisions)
            await lasting(caller.pause_s())

    while True:
        with suppress(StilltideError):  # the broker is away
            async with TransactionClient(
                place.bootstrap,
                name=name.partition(".")[0],
                transaction_timeout_s=TIMEOUT_S,
                request_timeout_s=30,
                direct_line=Random(name).random() < 0.5,
            ) as client:
                await asyncio.gather(*(work(client, number) for number in range(CALLERS)))
        await between_looks()


def _blocking_transact(
    caller: Caller, client: SyncTransactionClient, decisions: SyncDecisions
) -> None:
    key, way = caller.next()
    hooks, opened = caller.hooks, caller.random.choice(BLOCKING)
    with (
        caller.outcome(key),
        client.transaction() as txn,
        opened(caller.place) as connection,
    ):
        connection.execute(caller.order(key))
        for topic, record_key, value in caller.records(key):
            txn.send(topic, value, key=record_key)
        hooks.reach(Point.ROW_DUE)
        decisions.enlist(txn, connection.db)
        if way in {"roll back", "raise"}:
            raise GaveUpError
        hooks.reach(Point.PREPARED)
        if hooks.armed(Point.COMMITTING):
            after_s = caller.random.uniform(0, 0.03)
            threading.Timer(after_s, hooks.reach, [Point.COMMITTING]).start()
        connection.commit()
        hooks.reach(Point.COMMITTED)


def run_blocking(place: Place, name: str, hooks: Hooks) -> None:
    """The same without an event loop: callers are threads."""
    told = Told(place, name)
    decisions = SyncDecisions(DECIDER, place.database)

    def work(client: SyncTransactionClient, number: int) -> None:
        caller = Caller(place, f"{name}.{number}", hooks, told)
        while True:
            while caller.paused:
                block_between_looks()
            _blocking_transact(caller, client, decisions)
            block_between_looks()

    while True:
        with (
            suppress(StilltideError),
            SyncTransactionClient(
                bootstrap_servers=place.bootstrap,
                name=name.partition(".")[0],
                transaction_timeout_s=TIMEOUT_S,
                request_timeout_s=30,
            ) as client,
        ):
            threads = [
                threading.Thread(target=work, args=(client, number)) for number in range(CALLERS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        block_between_looks()
