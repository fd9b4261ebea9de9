"""Carries out what the resolvers of prepared transactions ask for.

*Source*: docs/protocols L5, L6.

*Invariants*: what fails is left as it is, told once, and tried again by a later round; a database
or coordinator that does not answer holds up no other one.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
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
from stilltide.pipeline.drivers.shared.tasks import Tasks
from stilltide.pipeline.errors import PipelineError, RequestTimeoutError
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

LIST_S = 1.0
"""Longest time for which a coordinator that is silent holds up the next round: the first one."""

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
        own: numbers of the coordinators that are asked, as of each round; None: all.

    Attributes:
        silent: coordinators that have not answered the last time.
    """

    def __init__(
        self,
        coordinators: Coordinators,
        cluster_id: str,
        deciders: Collection[str],
        clock: Clock,
        own: Collection[int] | None = None,
    ) -> None:
        self.coordinators = coordinators
        self.cluster_id = cluster_id
        self.clock = clock
        self.silent: set[int] = set()
        self._deciders = deciders
        self._own = own
        self._unknown: dict[int, dict[str, TxnId]] = {}
        self._look_ms = clock.monotonic_ms() + GROWTH_MS

    @property
    def unknown(self) -> Mapping[str, TxnId]:
        """Prepared transactions that a database without a known address decides.

        By the name of the database: an example for each.
        """
        return {name: txn for listed in self._unknown.values() for name, txn in listed.items()}

    @property
    def numbers(self) -> list[int]:
        """The coordinators to ask, of those that are known."""
        count = self.coordinators.count
        numbers = range(count) if self._own is None else self._own
        return [number for number in numbers if number < count]

    async def look(self) -> None:
        """Takes note of coordinators that were added, once in a while or if there is a need (C14).

        Raises:
            ConnectorError: the cluster cannot be asked.
        """
        now_ms = self.clock.monotonic_ms()
        due = now_ms >= self._look_ms
        if self._own is not None:
            due = max(self._own, default=0) >= self.coordinators.count
        if due:
            await self.coordinators.look_again()
            self._look_ms = now_ms + GROWTH_MS

    async def listed(self, coordinator: int) -> list[LiveTransaction]:
        """What a coordinator lists; it is asked after the call.

        Raises:
            StilltideError: the coordinator has not answered.
        """
        try:
            descriptions = await self.coordinators.transactions(coordinator)
        except StilltideError:
            self.silent.add(coordinator)
            raise
        self.silent.discard(coordinator)
        now_ms = self.clock.now_ms()
        listed = [self._unended(coordinator, item, now_ms) for item in descriptions]
        self._tell_unknown(coordinator, listed)
        return listed

    def _unended(self, coordinator: int, description: Description, now_ms: int) -> LiveTransaction:
        txn, preparation = TxnId(coordinator, description.sequence), description.preparation
        if preparation is None or description.state != "PREPARED":
            return LiveTransaction(txn)
        name = token_id(self.cluster_id, txn, preparation.secret_hash)
        age_ms = max(0, now_ms - preparation.prepared_at_ms)
        database, identity = parse_decider(preparation.decider)
        return LiveTransaction(txn, name, database, age_ms, identity)

    def _tell_unknown(self, coordinator: int, unended: Iterable[LiveTransaction]) -> None:
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
        self._unknown[coordinator] = unknown


class DecisionResolver:
    """Resolves the prepared transactions of a cluster that one database decides.

    Args:
        unended: lists what has not ended.
        decider: name of the database.
        table: its table of decisions.
        resolve_after_ms: how long a transaction is left to its client.
        rest_ms: as `Resolver`'s.

    Attributes:
        decider: name of the database.
    """

    def __init__(
        self,
        unended: UnendedTransactions,
        decider: str,
        table: DecisionTable,
        *,
        resolve_after_ms: int,
        rest_ms: int | None = None,
    ) -> None:
        self.decider = decider
        self._unended = unended
        self._table = table
        self._clock = unended.clock
        self._machine = Resolver(decider, resolve_after_ms=resolve_after_ms, rest_ms=rest_ms)
        self._resolved: list[Resolution] = []
        self._why: dict[TxnId, str] = {}
        self._troubled: dict[str, str] = {}
        self._asked: set[int] = set()
        self._late: set[int] = set()
        self._turn = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def waiting(self) -> dict[TxnId, str]:
        """Transactions of the database that were listed and not ended: why."""
        return {item.txn: self._why.get(item.txn, _YOUNG) for item in self._machine.prepared}

    def wake(self) -> None:
        """Something may be prepared that the database decides: a rest is over."""
        self._machine.woken(self._clock.monotonic_ms())
        self._turn.set()

    async def once(self) -> list[Resolution]:
        """Resolves once what has been prepared for long enough; returns what was ended.

        Every coordinator has answered, or has been waited for as long as for an answer.
        """
        await self._until_due()
        await self._carry_out(self._machine.tick(self._clock.monotonic_ms()))
        while self._machine.more:
            await self._carry_out(self._machine.tick(self._clock.monotonic_ms()))
        return self._taken()

    async def rounds(self) -> AsyncGenerator[list[Resolution], None]:
        """Resolves without an end; yields, before each round, what was ended since the last one."""
        under_way = Tasks(self._failed)
        try:
            while True:
                await self._until_due()
                yield self._taken()
                under_way.start(self._carry_out(self._machine.tick(self._clock.monotonic_ms())))
        finally:
            await under_way.close()

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._turn.set()

    async def _until_due(self) -> None:
        """Waits for the next round; the wait may become shorter while it lasts.

        Raises:
            Exception: what a round that is under way has not expected.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            self._turn.clear()
            due_ms = self._machine.deadline_ms
            pause_s = None if due_ms is None else (due_ms - self._clock.monotonic_ms()) / 1000
            if pause_s is not None and pause_s <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._turn.wait()

    def _taken(self) -> list[Resolution]:
        resolved, self._resolved = self._resolved, []
        return resolved

    async def _carry_out(self, effects: Iterable[ResolverEffect]) -> None:
        await asyncio.gather(*map(self._effect, effects))

    async def _effect(self, effect: ResolverEffect) -> None:
        match effect:
            case ReadRows(after):
                await self._carry_out(self._machine.rows(await self._rows(after)))
            case ListUnended(keys):
                await self._list(keys)
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

    async def _list(self, keys: Sequence[str]) -> None:
        """Asks the coordinators that are not being asked; only those are waited for that answer."""
        try:
            await self._unended.look()
        except StilltideError as error:
            self._trouble(_LISTING, error)
        else:
            self._troubled.pop(_LISTING, None)
        numbers = self._unended.numbers
        for left in {item.txn.coordinator for item in self._machine.prepared}.difference(numbers):
            self._machine.silent(left)  # another worker's by now
        async with asyncio.TaskGroup() as group:
            asks = {
                number: group.create_task(self._listed(number, keys))
                for number in numbers
                if number not in self._asked
            }
            for listed in asks.values():
                group.create_task(self._carry_out_of(listed))
            self._asked.update(asks)
            if prompt := [asks[number] for number in asks.keys() - self._late]:
                await asyncio.wait(prompt, timeout=LIST_S)
            self._late |= asks.keys() & self._asked
            self._machine.all_listed(self._clock.monotonic_ms())
            self._turn.set()

    async def _listed(self, coordinator: int, keys: Sequence[str]) -> list[ResolverEffect]:
        """Asks one coordinator; a late answer is as good, and its rows were read before as well."""
        list_of_it = f"{_LISTING} of coordinator {coordinator}"
        try:
            unended = await self._unended.listed(coordinator)
        except StilltideError as error:
            self._late.add(coordinator)
            if not isinstance(error, RequestTimeoutError):
                self._trouble(list_of_it, error)
            self._machine.silent(coordinator)
            return []
        finally:
            self._asked.discard(coordinator)
        self._late.discard(coordinator)
        self._troubled.pop(list_of_it, None)
        before = {item.txn: item.token_id for item in self._machine.prepared}
        effects = self._machine.listed(coordinator, unended, keys, self._clock.monotonic_ms())
        for txn in before.keys() - {item.txn for item in self._machine.prepared}:
            self._why.pop(txn, None)
            self._troubled.pop(before[txn], None)
        self._turn.set()
        return effects

    async def _carry_out_of(self, listed: asyncio.Task[list[ResolverEffect]]) -> None:
        await self._carry_out(await listed)

    async def _decided(self, unended: LiveTransaction) -> list[ResolverEffect]:
        try:
            deciding = self._table.decide(unended.token_id, unended.identity)
            committed = await self._answer(deciding)
        except ConnectorError as error:
            self._why[unended.txn] = str(error)
            self._trouble(unended.token_id, error)
            return self._machine.undecided(unended, self._clock.monotonic_ms())
        return self._machine.decided(unended, self._clock.monotonic_ms(), committed=committed)

    async def _ended(self, unended: LiveTransaction, *, committed: bool) -> list[ResolverEffect]:
        coordinator, sequence = unended.txn
        reason = f"its row in the database is {COMMITTED if committed else ABORTED}"
        by = f"resolver of {unended.decider}"
        try:
            decide = Decide(sequence, committed, reason, decided_by=by)
            await self._unended.coordinators.ask(coordinator, decide)
        except (PipelineError, ConnectorError) as error:
            # One that was decided meanwhile is on no list any more, and its row goes then.
            self._why[unended.txn] = str(error)
            log.info("prepared_not_ended", transaction=str(unended.txn), why=error.primary)
            return self._machine.not_ended(unended, self._clock.monotonic_ms())
        self._why.pop(unended.txn, None)
        self._troubled.pop(unended.token_id, None)
        self._resolved.append(Resolution(unended.txn, unended.decider, committed))
        return self._machine.ended(unended)

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
            raise RetriableError(f"the database {self.decider} does not answer") from error

    def _trouble(self, what: str, error: StilltideError) -> None:
        """Tells the log, once for each step, transaction and cause."""
        if self._troubled.get(what) != error.primary:
            self._troubled[what] = error.primary
            log.warning("prepared_not_decided", decider=self.decider, what=what, why=str(error))


def resolvers_of(
    unended: UnendedTransactions,
    tables: Mapping[str, DecisionTable],
    *,
    resolve_after_ms: int,
    rest_ms: int | None = None,
) -> list[DecisionResolver]:
    """A resolver for each database; they run side by side."""
    return [
        DecisionResolver(
            unended, decider, table, resolve_after_ms=resolve_after_ms, rest_ms=rest_ms
        )
        for decider, table in tables.items()
    ]
