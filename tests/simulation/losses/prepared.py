"""Losses of the rules about prepared transactions: letter L."""

from typing import Any

from stilltide.pipeline.core.coordinator.machine import Coordinator
from stilltide.pipeline.core.coordinator.state import CoordinatorState, TxnState
from stilltide.pipeline.core.decisions.resolver import EndTransaction, Resolver
from stilltide.pipeline.databases.connections import kind_of
from stilltide.pipeline.databases.decisions import Decisions
from stilltide.pipeline.drivers.decisions.resolver import DecisionResolver
from stilltide.schemas.coordinator.transactions import Done
from stilltide.schemas.decisions import COMMITTED
from tests.simulation.databases.connections import Table
from tests.simulation.losses.ablation import Ablation


def _times_out_what_is_prepared(original: Any) -> Any:
    def drive(self: Any, sequence: int, effects: list[Any], *, due: bool = False) -> None:
        txn = self.state.transactions.get(sequence)
        if due and txn is not None and txn.state is TxnState.PREPARED:
            txn.state = TxnState.OPEN
        original(self, sequence, effects, due=due)

    return drive


def _prepares_what_has_timed_out(original: Any) -> Any:
    def prepare(self: Any, body: Any, owner: bytes, at_ms: int) -> Any:
        txn = self.transactions.get(body.sequence)
        is_late = txn is not None and txn.state is TxnState.ABORTING
        return Done() if is_late else original(self, body, owner, at_ms)

    return prepare


def _knows_no_secret(original: Any) -> Any:
    def decide(self: Any, body: Any, at_ms: int) -> Any:
        return original(self, body._replace(secret_hash=b""), at_ms)

    return decide


def _last_decision_stands(original: Any) -> Any:
    def decide(self: Any, body: Any, at_ms: int) -> Any:
        txn = self.transactions.get(body.sequence)
        if txn is not None and txn.preparation is not None and txn.state is not TxnState.PREPARED:
            txn.state = TxnState.COMMITTING if body.committed else TxnState.ABORTING
            return Done()
        return original(self, body, at_ms)

    return decide


def _second_decision_is_answered(original: Any) -> Any:
    def decide(self: Any, body: Any, at_ms: int) -> Any:
        original(self, body, at_ms)
        return Done()

    return decide


def _row_comes_last(_original: Any) -> Any:
    async def enlist(self: Any, txn: Any, db: Any) -> None:
        await self._database.identity()
        name = await txn.token_id()
        await txn.prepare(decider=self._database)
        await kind_of(db).insert(db, name)

    return enlist


def _reads_instead_of_inserting(_original: Any) -> Any:
    async def decide(self: Any, token_id: str, identity: str) -> bool:
        return (await self.outcomes([token_id], identity)).get(token_id) == COMMITTED

    return decide


def _row_goes_first(original: Any) -> Any:
    async def ended(self: Any, unended: Any, *, committed: bool) -> Any:
        await self._delete((unended.token_id,))
        return await original(self, unended, committed=committed)

    return ended


def _guesses(_original: Any) -> Any:
    def undecided(_self: Any, unended: Any, _now_ms: float) -> list[Any]:
        return [EndTransaction(unended, committed=False)]

    return undecided


ABLATIONS = (
    Ablation("L1", "a time-out ends a prepared transaction", Coordinator, "_drive",
             _times_out_what_is_prepared),
    Ablation("L1t", "what has timed out may still be prepared", CoordinatorState, "_prepare",
             _prepares_what_has_timed_out),
    Ablation("L2", "the secret of a token is not compared", CoordinatorState, "_decide",
             _knows_no_secret),
    Ablation("L3", "the last decision stands", CoordinatorState, "_decide",
             _last_decision_stands),
    Ablation("L3a", "the opposite of a decision is answered alike", CoordinatorState, "_decide",
             _second_decision_is_answered),
    Ablation("L4", "the row is inserted after the transaction was prepared", Decisions, "enlist",
             _row_comes_last),
    Ablation("L4i", "a resolver reads the row that stands, and inserts none", Table, "decide",
             _reads_instead_of_inserting),
    Ablation("L5", "a resolver deletes the row before the coordinator has answered",
             DecisionResolver, "_ended", _row_goes_first),
    Ablation("L6", "a resolver aborts what a database has not decided", Resolver, "undecided",
             _guesses),
)  # fmt: skip
