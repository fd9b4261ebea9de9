"""The usual way of both or neither: one row in the application's own database transaction.

*Source*: docs/protocols L4.

*Invariants*: the row is inserted before the transaction is prepared. A resolver that
sees the transaction prepared, therefore, finds the row, or waits for a row that is not committed,
or knows that the database transaction has not committed and never will. The row is in the database
that is asked afterwards.
"""

from typing import Any, Protocol, Self

from stilltide.connectors.errors import OtherTableError
from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.pipeline.client.sync.loop_thread import LoopCalls
from stilltide.pipeline.config.deciders import check_decider_name
from stilltide.pipeline.databases.connections import explained, kind_of
from stilltide.pipeline.errors import ArgumentError
from stilltide.pipeline.extras import require_module
from stilltide.schemas.decisions import TABLE


class Preparable(Protocol):
    """What `enlist` needs of a transaction of a client."""

    async def token_id(self) -> str:
        """The name that the transaction will have when it is prepared; opens the transaction."""
        ...

    async def prepare(self, *, decider: str | DecidingDatabase = "") -> str:
        """Makes the content final; returns the token."""
        ...


class SyncPreparable(Protocol):
    """`Preparable` of `stilltide.sync`."""

    def token_id(self) -> str:
        """As `Preparable.token_id`."""
        ...

    def prepare(self, *, decider: str | DecidingDatabase = "") -> str:
        """As `Preparable.prepare`."""
        ...


class Decisions:
    """The table `stilltide_decisions` of one database, which decides how transactions end.

        decisions = Decisions("orders-db", "postgresql://user:password@host/orders")

        async with client.transaction() as txn:
            async with engine.begin() as db:
                await db.execute(insert(orders).values(...))
                await txn.send("orders", b"...")
                await decisions.enlist(txn, db)

    Connections are those of SQLAlchemy 2 (connections and sessions, awaited or not), psycopg 3,
    asyncpg, sqlite3 and aiosqlite, as they are. Make one object for each database. It opens with
    its first use, or as an asynchronous context manager, which may be entered again. Open it after
    the process was forked.

    Args:
        name: name of the database; resolvers know its address by this name (`deciders`, L6).
        address: URL of the database as SQLAlchemy writes it, or an engine of SQLAlchemy, whose URL
            is used. The database is asked there, on connections of its own, how transactions end.

    Raises:
        InvalidTextError: the name is no name.
        FatalError: the address is no URL, its driver is not installed, or the database is in the
            memory of the process.
        MissingExtraError: the extra `databases` is not installed.
    """

    def __init__(self, name: str, address: Any) -> None:
        self._database = _database(name, address)

    async def __aenter__(self) -> Self:
        self._database.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections to the database; end the transactions before."""
        await self._database.close()

    async def create_table(self, db: Any) -> None:
        """Makes the table where there is none, in the connection's own database transaction.

        Raises:
            ArgumentError: the connection is of no library that is known.
        """
        kind = kind_of(db)
        made = kind.create_table(db)
        if kind.awaited:
            await made

    async def enlist(self, txn: Preparable, db: Any) -> None:
        """Inserts the row that decides, then prepares the transaction (L4), last before commit.

        Afterwards the database decides for both. Leave the block of the database transaction, then
        the block of `client.transaction()`, which asks the database whether it has committed, and
        ends the transaction alike, also after an exception. If the database does not say, the
        transaction is left to resolvers. The connection is not used any more after this call. If
        the call raises, the transaction aborts, also where the error is swallowed.

        Raises:
            NoDatabaseTransactionError: the connection commits each statement by itself, or is
                inside of a savepoint; nothing was prepared.
            NoDecisionsTableError: the table, or its identity, is missing; nothing was prepared.
            OtherTableError: the connection is not to the database of the address; nothing was
                prepared.
            DecidedError: the transaction was enlisted before; nothing was prepared.
            ArgumentError: the connection is of no library that is known.
            RetriableError: the database of the address is away; nothing was prepared.
            NotOpenError, OtherLoopError, ForkedError: this object is closed, or was first used on
                another event loop, or before this process was forked.
            StilltideError: as `Transaction.prepare` raises; let the database transaction fail.
        """
        token_id = await txn.token_id()  # first: whatever fails from here on forbids a commit
        kind = kind_of(db)
        identity = await self._database.identity()
        try:
            inserted = kind.insert(db, token_id)
            actual = (await inserted) if kind.awaited else inserted
        except Exception as error:
            raise explained(error, token_id) from error
        _check_same(actual, identity)
        await txn.prepare(decider=self._database)


class SyncDecisions:
    """`Decisions` for programs without an event loop; takes connections that are not awaited.

    Args:
        name: as for `Decisions`.
        address: as for `Decisions`.
    """

    def __init__(self, name: str, address: Any) -> None:
        self._database = _database(name, address)
        self._calls: LoopCalls | None = None

    def __enter__(self) -> Self:
        self._opened().call(self._database.open)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """As `Decisions.close`."""
        self._opened().run(self._database.close())
        self._calls = None

    def create_table(self, db: Any) -> None:
        """As `Decisions.create_table`."""
        _blocking(db).create_table(db)

    def enlist(self, txn: SyncPreparable, db: Any) -> None:
        """As `Decisions.enlist`; the row is inserted on the calling thread."""
        token_id = txn.token_id()
        kind = _blocking(db)
        identity = self._opened().run(self._database.identity())
        try:
            actual = kind.insert(db, token_id)
        except Exception as error:
            raise explained(error, token_id) from error
        _check_same(actual, identity)
        txn.prepare(decider=self._database)

    def _opened(self) -> LoopCalls:
        if self._calls is None:  # a process that was forked before has a loop of its own
            self._calls = LoopCalls("database")
        return self._calls


def _database(name: str, address: Any) -> DecidingDatabase:
    check_decider_name(name, "`name`")
    require_module("`Decisions`", "sqlalchemy")
    from stilltide.connectors.databases.table import (  # noqa: PLC0415 - of an extra
        DatabaseTable,
    )

    url = getattr(address, "url", address)
    shown = getattr(url, "render_as_string", None)
    if shown is not None:
        url = shown(hide_password=False)
    if not isinstance(url, str):
        raise ArgumentError(
            f"`address` is a {type(address).__name__}",
            hint="give the URL of the database, or an engine of SQLAlchemy",
        )
    return DecidingDatabase(name, DatabaseTable(name, url))


def _check_same(actual: str, identity: str) -> None:
    if actual != identity:
        raise OtherTableError(
            "the connection is not to the database whose address `Decisions` has",
            detail=f"the table {TABLE} of the connection has the identity {actual}, that of the "
            f"address {identity}; nothing was prepared",
            hint="give `Decisions` the address of the connection's database, and let this database "
            "transaction fail",
        )


def _blocking(db: object) -> Any:
    kind = kind_of(db)
    if kind.awaited:
        raise ArgumentError(
            f"calls of a {type(db).__qualname__} have to be awaited",
            hint="use `stilltide.databases.Decisions`, or give a connection that waits by itself",
        )
    return kind
