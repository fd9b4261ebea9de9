"""Carries out what the resolver of prepared transactions asks for.

*Source*: docs/protocols L5, L6.

*Invariants*: what fails is left as it is, told once, and tried again by a later round; a database
that does not answer holds up no other database.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError
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
    Row,
    UnknownDecider,
)
from stilltide.pipeline.drivers.coordinator.operator import Coordinators
from stilltide.pipeline.errors import PipelineError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.prepared_tokens import token_id
from stilltide.schemas.coordinator.transactions import Decide, Description
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.values import TxnId

log = get_logger(__name__)


class Resolution(NamedTuple):
    """A transaction that a resolver has ended."""

    txn: TxnId
    decider: str
    committed: bool


class DecisionResolver:
    """Resolves the prepared transactions of a cluster.

    Args:
        coordinators: the cluster's coordinators, entered.
        cluster_id: Kafka's id of the cluster.
        tables: tables of decisions, by the name of their database.
        clock: time of the process.
        resolve_after_ms: how long a transaction is left to its client.

    Attributes:
        waiting: transactions of the tables that the last round has seen and not ended.
        silent: coordinators that have not answered in the last round.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        cluster_id: str,
        tables: Mapping[str, DecisionTable],
        clock: Clock,
        *,
        resolve_after_ms: int,
    ) -> None:
        self.waiting: set[TxnId] = set()
        self.silent: list[int] = []
        self._coordinators = coordinators
        self._cluster_id = cluster_id
        self._tables = tables
        self._clock = clock
        self._machine = Resolver(tables, resolve_after_ms=resolve_after_ms)
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
            case ReadRows(decider, after):
                rows = await self._rows(decider, after)
                await self._carry_out(self._machine.rows(decider, rows))
            case ListUnended():
                await self._carry_out(await self._listed())
            case AskDatabase(decider, unended):
                await self._carry_out(await self._decided(decider, unended))
            case EndTransaction(unended, committed):
                await self._carry_out(await self._ended(unended, committed=committed))
            case DeleteRows(decider, token_ids):
                await self._delete(decider, token_ids)
            case UnknownDecider(decider, txn):
                log.warning("decider_unknown", decider=decider, transaction=str(txn))

    async def _rows(self, decider: str, after: str) -> list[Row]:
        try:
            keys = await self._tables[decider].rows(after, f"{self._cluster_id}/", ROWS_MAX)
        except ConnectorError as error:
            self._trouble(decider, error)
            return []
        self._troubled.pop(decider, None)
        return [Row(key, txn) for key in keys if (txn := _txn_of(key)) is not None]

    async def _listed(self) -> list[ResolverEffect]:
        try:
            answers = await self._coordinators.transactions_of_each()
        except StilltideError as error:
            self._trouble("", error)
            return self._machine.list_failed(self._clock.monotonic_ms())
        self.silent = [number for number, transactions in answers.items() if transactions is None]
        now_ms = self._clock.now_ms()
        listed = {
            number: [self._unended(number, item, now_ms) for item in descriptions]
            for number, descriptions in answers.items()
            if descriptions is not None
        }
        every = (item for items in listed.values() for item in items)
        known = [item for item in every if item.decider in self._tables]
        self.waiting = {item.txn for item in known}
        names = {"", *self._tables, *(item.token_id for item in known)}
        self._troubled = {name: why for name, why in self._troubled.items() if name in names}
        return self._machine.listed(listed, self._clock.monotonic_ms())

    def _unended(self, coordinator: int, description: Description, now_ms: int) -> LiveTransaction:
        txn, preparation = TxnId(coordinator, description.sequence), description.preparation
        if preparation is None or description.state != "PREPARED":
            return LiveTransaction(txn)
        name = token_id(self._cluster_id, txn, preparation.secret_hash)
        age_ms = max(0, now_ms - preparation.prepared_at_ms)
        return LiveTransaction(txn, name, preparation.decider, age_ms)

    async def _decided(self, decider: str, unended: LiveTransaction) -> list[ResolverEffect]:
        try:
            committed = await self._tables[decider].decide(unended.token_id)
        except ConnectorError as error:
            self._trouble(unended.token_id, error)
            return self._machine.undecided(unended, self._clock.monotonic_ms())
        return self._machine.decided(unended, committed=committed)

    async def _ended(self, unended: LiveTransaction, *, committed: bool) -> list[ResolverEffect]:
        coordinator, sequence = unended.txn
        reason = f"{'committed' if committed else 'aborted'} in the database {unended.decider}"
        try:
            await self._coordinators.ask(coordinator, Decide(sequence, committed, reason))
        except (PipelineError, ConnectorError) as error:
            # One that was decided meanwhile is on no list any more, and its row goes then.
            log.info("prepared_not_ended", transaction=str(unended.txn), why=error.primary)
            return self._machine.not_ended(unended, self._clock.monotonic_ms())
        self.waiting.discard(unended.txn)
        self._resolved.append(Resolution(unended.txn, unended.decider, committed))
        return self._machine.ended(unended, self._clock.monotonic_ms())

    async def _delete(self, decider: str, token_ids: tuple[str, ...]) -> None:
        try:
            await self._tables[decider].delete(token_ids)
        except ConnectorError as error:
            self._trouble(decider, error)

    def _trouble(self, name: str, error: StilltideError) -> None:
        """Tells the log, once for each database, transaction and cause."""
        if self._troubled.get(name) != error.primary:
            self._troubled[name] = error.primary
            log.warning("prepared_not_decided", by=name or "coordinators", why=str(error))


def _txn_of(key: str) -> TxnId | None:
    """The transaction of a row's key; None: a stranger has written the row, which is left alone."""
    _, _, rest = key.partition("/")
    numbers = rest.partition("/")[0].split(":")
    if len(numbers) != 2 or not all(it.isascii() and it.isdigit() for it in numbers):  # noqa: PLR2004
        return None
    return TxnId(*map(int, numbers))
