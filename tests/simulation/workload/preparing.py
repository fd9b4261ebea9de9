"""Transactions that clients prepare: by tokens that they may give on, or by a row in a database."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from stilltide.pipeline.client.deciding_database import DecidingDatabase
from stilltide.pipeline.client.transaction import Transaction as ProductTransaction
from stilltide.pipeline.client.transaction_client import TransactionClient
from stilltide.pipeline.databases.decisions import Decisions
from stilltide.pipeline.errors import DecidedOtherwiseError
from stilltide.schemas.decisions import IDENTITY_KEY, TABLE
from stilltide.schemas.values import TxnId
from tests.simulation.databases.connections import Table, transaction
from tests.simulation.databases.database import Database, Key
from tests.simulation.history import History, Outcome, Transaction
from tests.simulation.network.paths import Path
from tests.simulation.plan import DATABASE, Decision, Operation, Preparation
from tests.simulation.programs import LeftError, now_s, send, value_of

LATE_S = 2.0
"""Time-out of transactions that are prepared when they time out."""

ORDERS = "orders"
"""The application's own table; the key of a row is the name of a transaction."""


class KeptToken(NamedTuple):
    """A token that was stored by the program that has prepared, with who is to decide what."""

    number: int
    txn: Transaction
    token: str
    holders: tuple[Decision, ...]


@dataclass
class Preparations:
    """What the programs of a world know of what they prepare, whatever befalls a process.

    Attributes:
        history: the history of the world.
        database: the database of all programs.
        transactions: the transactions that were to be prepared, by cluster and identity.
        tokens: the tokens that were given on, by cluster.
    """

    history: History
    database: Database
    transactions: dict[tuple[str, TxnId], Transaction] = field(
        default_factory=dict[tuple[str, TxnId], Transaction]
    )
    tokens: dict[str, list[KeptToken]] = field(default_factory=dict[str, list[KeptToken]])

    async def decide(
        self, txn: Transaction, decision: Decision, ask: Callable[[], Awaitable[object]]
    ) -> None:
        """Asks for a decision, and notes what the program is told; raises as `ask`."""
        stands: Outcome = "committed" if decision == "commit" else "aborted"
        txn.asked(stands, now_s())
        try:
            await ask()
        except DecidedOtherwiseError as error:
            stands = "committed" if error.committed else "aborted"
        self.told(txn, stands)

    def told(self, txn: Transaction, outcome: Outcome) -> None:
        """A program was told how a transaction is decided."""
        txn.answered(outcome, now_s())
        self.history.told.append((txn.name, outcome))

    def note_rows(self) -> None:
        """Writes down which rows of the application stand."""
        self.history.rows = {
            key.name: at_s for key, at_s in self.database.committed_s.items() if key.table == ORDERS
        }

    @property
    def decisions(self) -> list[str]:
        """The keys of the rows that decide."""
        return [
            key.name
            for key in self.database.rows
            if key.table == TABLE and key.name != IDENTITY_KEY
        ]


class _Enlisting(Decisions):
    """`Decisions` for the database of the world, which has no address."""

    def __init__(self, database: DecidingDatabase) -> None:
        self._database = database


class Preparing:
    """The part of a program's process that prepares.

    Args:
        preparations: those of the world.
        cluster: the cluster of the program.
        path: the way to the database.
    """

    def __init__(self, preparations: Preparations, cluster: str, path: Path) -> None:
        self._preparations = preparations
        self._cluster = cluster
        self._path = path
        table = Table(preparations.database, path)
        self._decisions = _Enlisting(DecidingDatabase(DATABASE, table))

    async def run(self, operation: Operation, transactions: TransactionClient) -> None:
        """Does one operation that is prepared; raises as the product and the database do."""
        preparation = operation.preparation
        assert preparation is not None
        txn = Transaction(f"transaction {operation.number}", now_s(), cluster=self._cluster)
        self._preparations.history.transactions.append(txn)
        # A time-out of its own: no transaction of the pool, which has more time, is taken.
        timeout_s = LATE_S + operation.number / 1000 if preparation.is_late else None
        async with transactions.transaction(timeout_s=timeout_s) as product:
            write = partial(self._write, operation, preparation, txn, product)
            await self.end(operation.number, preparation, txn, product, write)
        if product.state == "committed":
            txn.answered("committed", now_s())

    async def end(
        self,
        number: int,
        preparation: Preparation,
        txn: Transaction,
        product: ProductTransaction,
        write: Callable[[], Awaitable[None]],
    ) -> None:
        """Does what the transaction is for, prepares it, and decides as the plan says."""
        if preparation.row:
            await self._with_a_row(preparation, txn, product, write)
        else:
            await self._note(txn, product, write)
            await self._with_a_token(number, preparation, txn, product)

    async def _note(
        self, txn: Transaction, product: ProductTransaction, write: Callable[[], Awaitable[None]]
    ) -> None:
        """Writes, and notes the identity of the transaction."""
        await write()
        if product.id is None:
            await product.flush()
        assert product.id is not None
        self._preparations.transactions[self._cluster, product.id] = txn

    async def _write(
        self,
        operation: Operation,
        preparation: Preparation,
        txn: Transaction,
        product: ProductTransaction,
    ) -> None:
        """Sends all records, and waits for the time-out if the transaction is to be late."""
        began_s = 0.0
        for number, to in enumerate(operation.writes):
            await asyncio.sleep(0.0 if preparation.is_late else operation.pauses_s[number])
            began_s = began_s or now_s()
            await send(product, txn, self._cluster, to, value_of(operation, number))
        if operation.number % 2:
            await product.flush()
        if preparation.is_late:
            jitter_s = (operation.number % 13 - 3) * 0.001
            late_s = began_s + LATE_S + operation.number / 1000 + jitter_s
            await asyncio.sleep(max(0.0, late_s - now_s()))

    async def _with_a_token(
        self, number: int, preparation: Preparation, txn: Transaction, product: ProductTransaction
    ) -> None:
        """Prepares, gives the token on, and decides later, as the plan says."""
        token = await product.prepare()
        txn.prepared_s = now_s()
        if preparation.holders:
            kept = KeptToken(number, txn, token, preparation.holders)
            self._preparations.tokens.setdefault(self._cluster, []).append(kept)
        await asyncio.sleep(preparation.held_s)
        if preparation.ends:
            ask = product.commit if preparation.ends == "commit" else product.abort
            await self._preparations.decide(txn, preparation.ends, ask)

    async def _with_a_row(
        self,
        preparation: Preparation,
        txn: Transaction,
        product: ProductTransaction,
        write: Callable[[], Awaitable[None]],
    ) -> None:
        """Writes a row and records, both or neither; the database commits or rolls back at last."""
        txn.has_row = True
        async with transaction(self._preparations.database, self._path) as connection:
            await connection.insert(Key(ORDERS, txn.name), "")
            await self._note(txn, product, write)
            self._path.appended("enlist")
            await self._decisions.enlist(product, connection)
            txn.prepared_s = now_s()
            await asyncio.sleep(preparation.held_s)
            if preparation.row == "raise":
                raise LeftError
            if preparation.row == "rollback":
                await connection.rollback()
                return
            txn.asked("committed", now_s())
            await connection.commit()
