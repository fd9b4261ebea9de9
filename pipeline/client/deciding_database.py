"""The database that decides about enlisted transactions, as their client asks it.

*Source*: docs/protocols L4. The client reads what the database has committed, on connections of its
own: the application's connection may serve another task by then. What the read does not show is
decided as resolvers decide it.

*Invariants*: one statement at a time reads, for all transactions that wait by then. However many
transactions fail at once, the table is not asked for more than it takes.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.pipeline.client.usage import Home, not_open
from stilltide.schemas.decisions import COMMITTED, Decider
from stilltide.schemas.errors import StilltideError

T = TypeVar("T")

ANSWER_S = 10.0
"""Longest wait for the database's answer; resolvers ask again afterwards."""

KEYS_MAX = 500
"""Transactions that one statement asks for."""

DECISIONS_MAX = 3
"""Rows that are waited for at a time; reads, which wait for nothing, have a connection besides."""


class _Batch:
    """Transactions that one statement asks for, and what came of it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.outcomes: Mapping[str, str] | None = None
        self.failure: StilltideError | None = None


class DecidingDatabase:
    """A database; opened by `open` or its first use, on the event loop of that call.

    Args:
        name: name of the database.
        table: its table of decisions.
    """

    def __init__(self, name: str, table: DecisionTable) -> None:
        self._name = name
        self._table = table
        self._identity = ""
        self._home: Home | None = None
        self._closed = False
        self._next = _Batch()
        self._reads = asyncio.Lock()
        self._decisions = asyncio.Semaphore(DECISIONS_MAX)

    @property
    def decider(self) -> Decider:
        """What `Prepare` records, once `identity` was read."""
        return Decider(self._name, self._identity)

    async def identity(self) -> str:
        """The identity of the table; read once.

        Raises:
            NotOpenError, OtherLoopError, ForkedError: the database was closed, or first used on
                another event loop, or before this process was forked.
            RetriableError: the database is away.
            FatalError: the table is missing, or may not be read.
        """
        self._check()
        return self._identity or await self._answer(self._read_identity())

    async def committed(self, token_id: str, *, likely: bool) -> bool:
        """Whether the database has committed the transaction's row; if not, it never will.

        Args:
            token_id: key of the row.
            likely: whether the database has probably committed; a read is cheaper then.

        Raises:
            RetriableError: the database is away, or has neither committed nor rolled back.
            StilltideError: as `identity` raises, and `OtherTableError`.
        """
        self._check()
        if likely and (outcome := await self._answer(self._outcome(token_id))) is not None:
            return outcome == COMMITTED
        return await self._answer(self._decided(token_id))

    def open(self) -> None:
        """Opens the database on this event loop; again, if it was closed.

        Raises:
            OtherLoopError, ForkedError: as `identity` raises.
        """
        if self._closed:
            self._closed, self._home, self._identity = False, None, ""
            self._next, self._reads = _Batch(), asyncio.Lock()
            self._decisions = asyncio.Semaphore(DECISIONS_MAX)
        self._check()

    async def close(self) -> None:
        """Closes the connections; what asks afterwards is refused."""
        if not self._closed:
            self._check()
            self._closed = True
            await self._table.close()

    async def _read_identity(self) -> str:
        async with self._reads:  # once, for all who wait
            self._identity = self._identity or await self._table.identity()
            return self._identity

    async def _decided(self, token_id: str) -> bool:
        async with self._decisions:
            return await self._table.decide(token_id, self._identity)

    async def _outcome(self, token_id: str) -> str | None:
        batch = self._next
        batch.keys.append(token_id)
        if len(batch.keys) >= KEYS_MAX:
            self._next = _Batch()
        async with self._reads:
            if batch.failure is not None:
                raise batch.failure
            if batch.outcomes is None:  # the first of the batch, or those before it have given up
                batch.outcomes = await self._read(batch)
        return batch.outcomes.get(token_id)

    async def _read(self, batch: _Batch) -> Mapping[str, str]:
        if self._next is batch:
            self._next = _Batch()
        try:
            return await self._table.outcomes(batch.keys, self._identity)
        except StilltideError as error:
            batch.failure = error
            raise

    async def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asking
        except TimeoutError as error:
            raise RetriableError(f"the database {self._name} does not answer") from error

    def _check(self) -> None:
        if self._closed:
            raise not_open("database", "keep `Decisions` open until the last transaction has ended")
        if self._home is None:
            self._home = Home("database")
        self._home.check()
