"""Losses of the rules about coordinators and their clients: letter C."""

import asyncio
from dataclasses import replace
from typing import Any

from stilltide.pipeline.client.transaction_end import TransactionEnd
from stilltide.pipeline.client.transaction_registration import TransactionRegistration
from stilltide.pipeline.core.buffered_log.bases import BaseKeeper, Trim
from stilltide.pipeline.core.coordinator import client_transaction
from stilltide.pipeline.core.coordinator import machine as coordinator
from stilltide.pipeline.core.coordinator import state as coordinator_state
from stilltide.pipeline.core.coordinator.client_transaction import ClientTransaction, ToSettle
from stilltide.pipeline.core.coordinator.machine import Coordinator, Propose
from stilltide.pipeline.core.coordinator.outcomes import OutcomeHistory
from stilltide.pipeline.core.coordinator.pool import TransactionPool
from stilltide.pipeline.core.coordinator.state import CoordinatorState, TxnState
from stilltide.pipeline.core.pending_ack.state import PendingAckState
from stilltide.pipeline.drivers.service.own.owner import ServiceOwner
from stilltide.schemas.coordinator.transactions import Ended, TimedOut
from stilltide.schemas.values import EndOffset
from tests.simulation.losses.ablation import Ablation, none


def _times_out_what_commits(original: Any) -> Any:
    def apply(self: Any, record: Any) -> Any:
        if isinstance(record.body, TimedOut):
            txn = self.transactions.get(record.body.sequence)
            if txn is not None and txn.state is TxnState.COMMITTING:
                txn.state = TxnState.ABORTING
        return original(self, record)

    return apply


def _answers_at_once(_original: Any) -> Any:
    return lambda _self, call, *_, **__: call()


def _forgets_answers(original: Any) -> Any:
    def request(self: Any, request: Any, at_ms: int) -> Any:
        self.clients.pop(coordinator_state.client_key(request.client_id), None)
        return original(self, request._replace(acked_through=0), at_ms)

    return request


def _registers_nothing(original: Any) -> Any:
    async def add(self: Any, txn: Any, _partitions: Any, subscriptions: Any) -> None:
        if subscriptions:
            await original(self, txn, (), subscriptions)

    return add


def _ends_as_registered(_original: Any) -> Any:
    def ends_read(self: Any, sequence: int, _ends: Any) -> Any:
        txn = self.state.transactions.get(sequence)
        if txn is None or txn.state is not TxnState.ABORTING:
            return []
        found = {data: (EndOffset(one.start_offset), 0) for data, one in txn.partitions.items()}
        return [coordinator._participants(self.coordinator, txn, found)]  # pyright: ignore[reportPrivateUsage]

    return ends_read


def _ends_as_counted(original: Any) -> Any:
    def counted(all_writes: Any) -> Any:
        written = yield from original(all_writes)
        return tuple(
            it._replace(end_offset=EndOffset(it.first_offset + it.record_count)) for it in written
        )

    return counted


def _ends_before_markers(original: Any) -> Any:
    def drive(self: Any, sequence: int, effects: list[Any], *, due: bool = False) -> None:
        before = len(effects)
        original(self, sequence, effects, due=due)
        if any(type(it).__name__ in {"EndParticipants", "ReadEnds"} for it in effects[before:]):
            del effects[before:]
            effects.append(Propose(Ended(sequence)))

    return drive


def _leaves_what_ends(original: Any) -> Any:
    def serve(self: Any, epoch: Any, now_ms: int) -> Any:
        kept = {"EndParticipants", "ReadEnds"}
        return [it for it in original(self, epoch, now_ms) if type(it).__name__ not in kept]

    return serve


def _settles_nothing(original: Any) -> Any:
    return lambda *args: replace(original(*args), subscriptions=())


def _does_not_wait_for_reports(_original: Any) -> Any:
    async def collect(self: Any) -> ToSettle:
        await self._registration.finished()
        await asyncio.sleep(0)
        _claims_delivered(None)(self._machine)
        await self._acks.gathered()
        return self._to_settle()

    return collect


def _claims_delivered(_original: Any) -> Any:
    """Takes what has been reported as delivered for all that was sent."""

    def check(self: Any) -> None:
        for data, writes in list(self.writes.items()):
            writes.sent = writes.count
            writes.error = None
            if not writes.count:
                del self.writes[data]

    return check


def _never_times_out(original: Any) -> Any:
    def drive(self: Any, sequence: int, effects: list[Any], *, due: bool = False) -> None:
        txn = self.state.transactions.get(sequence)
        if txn is not None and txn.state is not TxnState.OPEN:
            original(self, sequence, effects, due=due)

    return drive


def _watermark_too_high(_original: Any) -> Any:
    return property(lambda self: self.next_sequence)


def _trims_the_base(original: Any) -> Any:
    def piece_read(self: Any, piece: Any) -> Any:
        trims = original(self, piece)
        return [Trim(self.liveness.last_entry.offset + 1) for _ in trims]

    return piece_read


def _base_counts_from_0(original: Any) -> Any:
    return lambda state: original(state)._replace(next_sequence=0)


def _base_without_groups(original: Any) -> Any:
    return lambda self: original(self)._replace(subscriptions=())


def _keeps_what_it_releases(original: Any) -> Any:
    def tick(self: Any, now_ms: float) -> Any:
        kept = {timeout_ms: list(stock) for timeout_ms, stock in self._stock.items()}
        effects = original(self, now_ms)
        for timeout_ms, stock in kept.items():
            self._stock[timeout_ms] = [it._replace(until_ms=now_ms + 1000) for it in stock]
        return effects

    return tick


ABLATIONS = (
    Ablation("C0", "a time-out aborts what is committing", CoordinatorState, "apply",
             _times_out_what_commits),
    Ablation("C1", "a question is answered before an entry is read back", ServiceOwner,
             "_after_noop", _answers_at_once,
             "a replaced owner has to be asked before it reads its successor's fence",
             tests="tests/unit/drivers/coordinator"),
    Ablation("C1b", "answers are not remembered: a repeated request is carried out again",
             CoordinatorState, "_request", _forgets_answers),
    Ablation("C2", "further partitions of a transaction are not registered",
             TransactionRegistration, "_add", _registers_nothing),
    Ablation("C3", "an abort is written with the end offset of the registration", Coordinator,
             "ends_read", _ends_as_registered,
             "an abort hides its records at every offset (D1); audits alone read its end",
             tests="tests/unit/core/coordinator"),
    Ablation("C3c", "a commit ends as many offsets above its first one as it has records",
             client_transaction, "_counted", _ends_as_counted),
    Ablation("C4", "a transaction ends before its markers are written", Coordinator, "_drive",
             _ends_before_markers),
    Ablation("C4l", "a step of an end that failed is not repeated", Coordinator, "lost", none),
    Ablation("C4n", "a new owner does not complete what is ending", Coordinator, "serve",
             _leaves_what_ends),
    Ablation("C4s", "a transaction ends before its acknowledgements are settled", coordinator,
             "_participants", _settles_nothing),
    Ablation("C6", "a commit does not ask whether all records were delivered",
             ClientTransaction, "check_delivered", _claims_delivered),
    Ablation("C6r", "a commit does not wait for reports", TransactionEnd, "_collect",
             _does_not_wait_for_reports),
    Ablation("C7", "an open transaction is never timed out", Coordinator, "_drive",
             _never_times_out),
    Ablation("C7w", "the low watermark passes open transactions", CoordinatorState,
             "low_watermark", _watermark_too_high),
    Ablation("C8", "a log is trimmed past its base", BaseKeeper, "piece_read", _trims_the_base),
    Ablation("C8a", "a base holds no acknowledgements", PendingAckState, "base",
             _base_without_groups),
    Ablation("C8n", "a base does not hold the next sequence", coordinator, "state_of",
             _base_counts_from_0),
    Ablation("C9", "a transaction from the pool is used after its release", TransactionPool,
             "tick", _keeps_what_it_releases),
    Ablation("C12", "a coordinator does not note that a transaction has committed",
             OutcomeHistory, "committed", none),
)  # fmt: skip
