"""The usual way of both or neither: one row in the application's own database transaction.

*Source*: docs/protocols L4.

*Invariants*: the row is inserted before the transaction is prepared. A resolver that
sees the transaction prepared, therefore, finds the row, or waits for a row that is not committed,
or knows that the database transaction has not committed and never will.
"""

from typing import Any, Protocol

from stilltide.connectors.names import check_name
from stilltide.pipeline.databases.connections import explained, kind_of
from stilltide.pipeline.errors import ArgumentError

DEFAULT_NAME = "default"


class Preparable(Protocol):
    """What `enlist` needs of a transaction of a client."""

    async def token_id(self) -> str:
        """The name that the transaction will have when it is prepared; opens the transaction."""
        ...

    async def prepare(self, *, decider: str = "") -> str:
        """Makes the content final; returns the token."""
        ...


class SyncPreparable(Protocol):
    """`Preparable` of `stilltide.sync`."""

    def token_id(self) -> str:
        """As `Preparable.token_id`."""
        ...

    def prepare(self, *, decider: str = "") -> str:
        """As `Preparable.prepare`."""
        ...


class Decisions:
    """The table `stilltide_decisions` of one database, which decides how transactions end.

        async with client.transaction() as txn:
            async with engine.begin() as db:
                await db.execute(insert(orders).values(...))
                await txn.send("orders", b"...")
                await decisions.enlist(txn, db)

    Connections are those of SQLAlchemy 2 (connections and sessions, awaited or not), psycopg 3,
    asyncpg, sqlite3 and aiosqlite, as they are.

    Args:
        name: name of the database; resolvers know its address by this name (`deciders`, L6).

    Raises:
        InvalidTextError: the name is no name.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        check_name(name, "`name`")
        self.name = name

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
        """Inserts the row that decides, then prepares the transaction: the last step before commit.

        Afterwards the database's own commit decides for both. Leave the block of the database
        transaction, then the block of `client.transaction()`, which commits. When an exception
        leaves the blocks instead, a resolver asks the database, since a commit that raised may
        have taken effect. A database transaction that is rolled back in silence (a session that is
        closed without `commit`) has to raise, or `txn.abort()` has to be called: leaving the blocks
        without an exception says that the database has committed.

        Raises:
            NoDatabaseTransactionError: the connection commits each statement by itself, or is
                inside of a savepoint; no row was inserted.
            NoDecisionsTableError: the table is missing; nothing was prepared.
            DecidedError: the transaction was enlisted before; nothing was prepared.
            ArgumentError: the connection is of no library that is known.
            StilltideError: as `Transaction.prepare` raises; let the database transaction fail.
        """
        kind = kind_of(db)
        token_id = await txn.token_id()
        try:
            inserted = kind.insert(db, token_id)
            if kind.awaited:
                await inserted
        except Exception as error:
            raise explained(error, token_id) from error
        await txn.prepare(decider=self.name)


class SyncDecisions:
    """`Decisions` for programs without an event loop; takes connections that are not awaited.

    Args:
        name: as for `Decisions`.
    """

    def __init__(self, name: str = DEFAULT_NAME) -> None:
        check_name(name, "`name`")
        self.name = name

    def create_table(self, db: Any) -> None:
        """As `Decisions.create_table`."""
        _blocking(db).create_table(db)

    def enlist(self, txn: SyncPreparable, db: Any) -> None:
        """As `Decisions.enlist`; the row is inserted on the calling thread."""
        kind = _blocking(db)
        token_id = txn.token_id()
        try:
            kind.insert(db, token_id)
        except Exception as error:
            raise explained(error, token_id) from error
        txn.prepare(decider=self.name)


def _blocking(db: object) -> Any:
    kind = kind_of(db)
    if kind.awaited:
        raise ArgumentError(
            f"calls of a {type(db).__qualname__} have to be awaited",
            hint="use `stilltide.databases.Decisions`, or give a connection that waits by itself",
        )
    return kind
