"""Programs that write a row into PostgreSQL, and two records that belong to it into Kafka.

*Invariants*: every way writes the same row and the same records; a record carries the number of its
transaction. `Sightings` notes when each database transaction has committed, and when a
subscription has seen both records.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from stilltide.databases import Decisions
from stilltide.pipeline.client import Subscription, TransactionClient
from tests.bench.databases import outbox

TOPIC = "bench"
PARTITIONS = 3
RECORDS = 2
FILLING = b"x" * 92
ORDERS_DDL = "CREATE TABLE orders (number bigint PRIMARY KEY, content text NOT NULL)"
CONTENT = "x" * 100

Begun = Callable[[], AbstractAsyncContextManager[Any]]
"""Begins a database transaction on a connection of a pool; the end of the block commits."""


class Database(NamedTuple):
    """One kind of connection.

    Attributes:
        begin: begins a database transaction.
        insert: inserts the row of a number.
    """

    begin: Begun
    insert: Callable[[Any, int], Awaitable[object]]


@asynccontextmanager
async def by_asyncpg(conninfo: str, connections: int) -> AsyncIterator[Database]:
    """Connections of asyncpg's own pool."""
    async with asyncpg.create_pool(conninfo, min_size=connections, max_size=connections) as pool:

        @asynccontextmanager
        async def begin() -> AsyncIterator[Any]:
            async with pool.acquire() as db, db.transaction():
                yield db

        async def insert(db: Any, number: int) -> None:
            await db.execute("INSERT INTO orders VALUES ($1, $2)", number, CONTENT)

        yield Database(begin, insert)


@asynccontextmanager
async def by_alchemy(url: str, connections: int) -> AsyncIterator[Database]:
    """Connections of SQLAlchemy's async engine, over asyncpg."""
    engine = create_async_engine(url, pool_size=connections, max_overflow=0)
    statement = text("INSERT INTO orders VALUES (:number, :content)")

    async def insert(db: Any, number: int) -> None:
        await db.execute(statement, {"number": number, "content": CONTENT})

    try:
        yield Database(engine.begin, insert)
    finally:
        await engine.dispose()


class Sightings:
    """When transactions have committed, and when their records were seen.

    Attributes:
        delays_s: from the database's commit to the sight of the last record, in order of sight.
    """

    def __init__(self) -> None:
        self.delays_s: list[float] = []
        self._committed_s: dict[int, float] = {}
        self._left: dict[int, int] = {}
        self._awaited: dict[int, asyncio.Future[None]] = {}

    @property
    def unseen(self) -> int:
        """Transactions that were begun and not seen."""
        return len(self._left)

    def expect(self, number: int) -> None:
        """The transaction of that number begins."""
        self._left[number] = RECORDS

    def committed(self, number: int) -> None:
        """The database transaction has committed just now."""
        self._committed_s[number] = time.perf_counter()

    async def seen(self, number: int) -> None:
        """Waits until both records are seen."""
        if number in self._left:
            self._awaited[number] = asyncio.get_running_loop().create_future()
            await self._awaited[number]

    async def watch(self, subscription: Subscription) -> None:
        """Notes what the subscription sees, until cancelled."""
        async for message in subscription:
            assert message.value is not None
            (number,) = struct.unpack_from(">q", message.value)
            if number not in self._left:
                continue  # the poller of an outbox, once killed, has written records twice
            self._left[number] -= 1
            if self._left[number] == 0:
                del self._left[number]
                now_s = time.perf_counter()
                # The record may be seen before the program knows that it has committed.
                self.delays_s.append(now_s - self._committed_s.pop(number, now_s))
                if (awaited := self._awaited.pop(number, None)) is not None:
                    awaited.set_result(None)


def records_of(number: int) -> list[tuple[int, bytes]]:
    """The records of a transaction: partition and value."""
    value = struct.pack(">q", number) + FILLING
    return [((number + which) % PARTITIONS, value) for which in range(RECORDS)]


Program = Callable[[int], Awaitable[None]]
"""Carries out the transaction of a number."""


def bare(database: Database) -> Program:
    """The row alone."""

    async def program(number: int) -> None:
        async with database.begin() as db:
            await database.insert(db, number)

    return program


def with_outbox(database: Database, sightings: Sightings) -> Program:
    """The row, and the records into the outbox."""

    async def program(number: int) -> None:
        async with database.begin() as db:
            await database.insert(db, number)
            records = records_of(number)
            values = (item for partition, value in records for item in (TOPIC, partition, value))
            await db.execute(outbox.INSERT, *values)
        sightings.committed(number)

    return program


class Steps:
    """How long each step of a transaction takes, in order.

    Attributes:
        kept: whether what is timed now is kept.
        took_s: the times of each step.
    """

    def __init__(self) -> None:
        self.kept = False
        self.took_s: dict[str, list[float]] = {}

    def stop_watch(self) -> Callable[[str], None]:
        """A function that ends a step by its name, and begins the next one."""
        last_s = time.perf_counter()

        def lap(step: str) -> None:
            nonlocal last_s
            now_s = time.perf_counter()
            if self.kept:
                self.took_s.setdefault(step, []).append(now_s - last_s)
            last_s = now_s

        return lap


class Stepped:
    """A transaction whose steps inside of `enlist` are timed."""

    def __init__(self, txn: Any, lap: Callable[[str], None]) -> None:
        self._txn = txn
        self._lap = lap

    async def token_id(self) -> str:
        """Waits until the records are durable."""
        token_id = await self._txn.token_id()
        self._lap("records durable")
        return token_id

    async def prepare(self, *, decider: Any = "") -> str:
        """The row of the decision was inserted just now."""
        self._lap("row of the decision")
        token = await self._txn.prepare(decider=decider)
        self._lap("prepare")
        return token


def two_phase(
    database: Database,
    client: TransactionClient,
    decisions: Decisions,
    sightings: Sightings,
    steps: Steps,
) -> Program:
    """The row and the records, both or neither."""

    async def program(number: int) -> None:
        lap = steps.stop_watch()
        async with client.transaction() as txn:
            async with database.begin() as db:
                lap("begin")
                await database.insert(db, number)
                lap("row")
                for partition, value in records_of(number):
                    await txn.send(TOPIC, value, partition=partition)
                lap("send")
                await decisions.enlist(Stepped(txn, lap), db)
            sightings.committed(number)
            lap("database commit")
        lap("end")

    return program
