"""Carries out what the resolvers of prepared transactions ask for.

*Source*: docs/protocols L5, L6.

*Invariants*: what fails is left as it is, told once, and tried again by a later round; a database
that does not answer holds up no other database.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError, RetriableError
from stilltide.connectors.ports.decisions import DecisionTable
from stilltide.pipeline.core.decisions.resolver import (
    ROWS_MAX,
    AskDatabase,
    DeleteRows,
    EndTransaction,
    ListUnended,
    LiveTransaction,
    ReadRows,
    Resolver,
    ResolverEffect,
)
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import PipelineError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.prepared_tokens import token_id
from stilltide.schemas.coordinator.transactions import Decide, Description
from stilltide.schemas.decisions import ABORTED, COMMITTED, parse_decider
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TxnId

log = get_logger(__name__)

T = TypeVar("T")

ANSWER_S = 20
"""Longest wait for a database, which waits for locks itself; beyond, it counts as away."""

GROWTH_MS = 10_000
"""Pause between two looks whether coordinators were added (C14)."""

_YOUNG = "its client may end it yet"

_READING, _LISTING, _DELETING = "reading of rows", "list of transactions", "deletion of rows"
"""What may fail, beside the decision of a transaction."""


class Resolution(NamedTuple):
    """A transaction that a resolver has ended."""

    txn: TxnId
    decider: str
    committed: bool


class UnendedTransactions:
    """What the coordinators of a cluster list as not ended, for the resolvers of all databases.

    Args:
        coordinators: the cluster's coordinators, entered.
        cluster_id: Kafka's id of the cluster.
        deciders: names of the databases whose address is known.
        clock: time of the process.

    Attributes:
        silent: coordinators that have not answered the last time.
        unknown: prepared transactions that a database without a known address decides, by the name
            of the database: an example for each.
    """

    def __init__(
        self, coordinators: Coordinators, cluster_id: str, deciders: Collection[str], clock: Clock
    ) -> None:
        self.coordinators = coordinators
        self.cluster_id = cluster_id
        self.clock = clock
        self.silent: list[int] = []
        self.unknown: dict[str, TxnId] = {}
        self._deciders = deciders
        self._look_ms = clock.monotonic_ms() + GROWTH_MS

    async def listed(self) -> dict[int, list[LiveTransaction]]:
        """Of each coordinator that answers; asked for after the call.

        Raises:
            StilltideError: no coordinator could be asked.
        """
        self.silent = list(range(self.coordinators.count))
        if self.clock.monotonic_ms() >= self._look_ms:
            await self.coordinators.look_again()
            self._look_ms = self.clock.monotonic_ms() + GROWTH_MS
        answers = await self.coordinators.transactions_of_each()
        self.silent = [number for number, transactions in answers.items() if transactions is None]
        now_ms = self.clock.now_ms()
        listed = {
            number: [self._unended(number, item, now_ms) for item in descriptions]
            for number, descriptions in answers.items()
            if descriptions is not None
        }
        self._tell_unknown(item for items in listed.values() for item in items)
        return listed

    def _unended(self, coordinator: int, description: Description, now_ms: int) -> LiveTransaction:
        txn, preparation = TxnId(coordinator, description.sequence), description.preparation
        if preparation is None or description.state != "PREPARED":
            return LiveTransaction(txn)
        name = token_id(self.cluster_id, txn, preparation.secret_hash)
        age_ms = max(0, now_ms - preparation.prepared_at_ms)
        database, identity = parse_decider(preparation.decider)
        return LiveTransaction(txn, name, database, age_ms, identity)

    def _tell_unknown(self, unended: Iterable[LiveTransaction]) -> None:
        """Tells the log, once while such transactions are prepared.

        A decider without an identity is no database: its program decides by the token.
        """
        unknown = {
            item.decider: item.txn
            for item in unended
            if item.identity and item.decider not in self._deciders
        }
        for decider, txn in unknown.items():
            if decider not in self.unknown:
                log.warning(
                    "decider_unknown",
                    decider=decider,
                    transaction=str(txn),
                    hint=f"name its address in the setting deciders: {decider}=URL",
                )
        self.unknown = unknown


class DecisionResolver:
    """Resolves the prepared transactions of a cluster that one database decides.

    Args:
        unended: lists what has not ended.
        decider: name of the database.
        table: its table of decisions.
        resolve_after_ms: how long a transaction is left to its client.

    Attributes:
        waiting: transactions of the database that the last round has seen and not ended: why.
    """

    def __init__(
        self,
        unended: UnendedTransactions,
        decider: str,
        table: DecisionTable,
        *,
        resolve_after_ms: int,
    ) -> None:
        self.waiting: dict[TxnId, str] = {}
        self._unended = unended
        self._decider = decider
        self._table = table
        self._clock = unended.clock
        self._machine = Resolver(decider, resolve_after_ms=resolve_after_ms)
        self._resolved: list[Resolution] = []
        self._troubled: dict[str, str] = {}

    async def rounds(self) -> AsyncIterator[list[Resolution]]:
        """Resolves round by round, without an end; yields what each round has ended.

        A round that has left something to do for another one that begins at once is not yielded
        alone.
        """
        while (due_ms := self._machine.deadline_ms) is not None:
            now_ms = self._clock.monotonic_ms()
            await asyncio.sleep(max(0.0, due_ms - now_ms) / 1000)
            await self._carry_out(self._machine.tick(self._clock.monotonic_ms()))
            if not self._machine.more:
                resolved, self._resolved = self._resolved, []
                yield resolved

    async def _carry_out(self, effects: Iterable[ResolverEffect]) -> None:
        await asyncio.gather(*map(self._effect, effects))

    async def _effect(self, effect: ResolverEffect) -> None:
        match effect:
            case ReadRows(after):
                await self._carry_out(self._machine.rows(await self._rows(after)))
            case ListUnended():
                await self._carry_out(await self._listed())
            case AskDatabase(unended):
                await self._carry_out(await self._decided(unended))
            case EndTransaction(unended, committed):
                await self._carry_out(await self._ended(unended, committed=committed))
            case DeleteRows(token_ids):
                await self._delete(token_ids)

    async def _rows(self, after: str) -> list[str]:
        try:
            keys = await self._answer(
                self._table.rows(after, f"{self._unended.cluster_id}/", ROWS_MAX)
            )
        except ConnectorError as error:
            self._trouble(_READING, error)
            return []
        self._troubled.pop(_READING, None)
        return keys

    async def _listed(self) -> list[ResolverEffect]:
        try:
            listed = await self._unended.listed()
        except StilltideError as error:
            self._trouble(_LISTING, error)
            return self._machine.list_failed(self._clock.monotonic_ms())
        every = (item for items in listed.values() for item in items)
        own = [item for item in every if item.decider == self._decider]
        self.waiting = {item.txn: self.waiting.get(item.txn, _YOUNG) for item in own}
        names = {_READING, _DELETING, *(item.token_id for item in own)}
        self._troubled = {name: why for name, why in self._troubled.items() if name in names}
        return self._machine.listed(listed, self._clock.monotonic_ms())

    async def _decided(self, unended: LiveTransaction) -> list[ResolverEffect]:
        try:
            deciding = self._table.decide(unended.token_id, unended.identity)
            committed = await self._answer(deciding)
        except ConnectorError as error:
            self.waiting[unended.txn] = str(error)
            self._trouble(unended.token_id, error)
            return self._machine.undecided(unended, self._clock.monotonic_ms())
        return self._machine.decided(unended, committed=committed)

    async def _ended(self, unended: LiveTransaction, *, committed: bool) -> list[ResolverEffect]:
        coordinator, sequence = unended.txn
        reason = f"its row in the database is {COMMITTED if committed else ABORTED}"
        by = f"resolver of {unended.decider}"
        try:
            decide = Decide(sequence, committed, reason, decided_by=by)
            await self._unended.coordinators.ask(coordinator, decide)
        except (PipelineError, ConnectorError) as error:
            # One that was decided meanwhile is on no list any more, and its row goes then.
            self.waiting[unended.txn] = str(error)
            log.info("prepared_not_ended", transaction=str(unended.txn), why=error.primary)
            return self._machine.not_ended(unended, self._clock.monotonic_ms())
        self.waiting.pop(unended.txn, None)
        self._resolved.append(Resolution(unended.txn, unended.decider, committed))
        return self._machine.ended(unended, self._clock.monotonic_ms())

    async def _delete(self, token_ids: tuple[str, ...]) -> None:
        try:
            await self._answer(self._table.delete(token_ids))
        except ConnectorError as error:
            self._trouble(_DELETING, error)
        else:
            self._troubled.pop(_DELETING, None)

    async def _answer(self, statement: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_S):
                return await statement
        except TimeoutError as error:
            raise RetriableError(f"the database {self._decider} does not answer") from error

    def _trouble(self, what: str, error: StilltideError) -> None:
        """Tells the log, once for each step, transaction and cause."""
        if self._troubled.get(what) != error.primary:
            self._troubled[what] = error.primary
            log.warning("prepared_not_decided", decider=self._decider, what=what, why=str(error))


def resolvers_of(
    unended: UnendedTransactions, tables: Mapping[str, DecisionTable], *, resolve_after_ms: int
) -> list[DecisionResolver]:
    """A resolver for each database; they run side by side."""
    return [
        DecisionResolver(unended, decider, table, resolve_after_ms=resolve_after_ms)
        for decider, table in tables.items()
    ]
