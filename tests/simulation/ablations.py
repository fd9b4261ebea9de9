"""Rules switched off one by one: the simulation has to notice each loss.

Each entry takes the place of one check of the product by a patch. A rule whose loss no seed shows
is not needed, or the workload is poor.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from stilltide.pipeline.client.transaction_records import TransactionRecords
from stilltide.pipeline.client.transaction_registration import TransactionRegistration
from stilltide.pipeline.core.buffered_log.effective import EffectiveLog
from stilltide.pipeline.core.buffered_log.owner import LogOwner, OwnerState
from stilltide.pipeline.core.coordinator import machine as coordinator
from stilltide.pipeline.core.coordinator import state as coordinator_state
from stilltide.pipeline.core.coordinator.machine import Coordinator, Propose
from stilltide.pipeline.core.coordinator.state import CoordinatorState
from stilltide.pipeline.core.pending_ack.subscription import SubscriptionAcks
from stilltide.pipeline.core.read_committed.machine import PartitionFilter
from stilltide.pipeline.core.snapshots.buffer import TransactionBuffer
from stilltide.pipeline.core.snapshots.writer import SnapshotWriter
from stilltide.schemas.coordinator.transactions import Ended
from stilltide.schemas.values import EndOffset

_VISIBLE = 1 << 62
_HIDDEN = -1


class Ablation(NamedTuple):
    """One rule that is switched off.

    Attributes:
        rule: the letter and number of the rule.
        text: what is switched off.
        owner: the class or module with the check.
        name: the name of the check.
        make: makes the check's replacement of the check.
    """

    rule: str
    text: str
    owner: Any
    name: str
    make: Callable[[Any], Any]


def _every_entry_counts(original: Any) -> Any:
    def entry_read(self: Any, offset: Any, stamp: Any) -> bool:
        original(self, offset, stamp)
        return True

    return entry_read


def _repeated_serial_counts(original: Any) -> Any:
    def entry_read(self: Any, offset: Any, stamp: Any) -> bool:
        return original(self, offset, stamp) or stamp.epoch == self._epoch

    return entry_read


def _goes_on_after_a_fence(original: Any) -> Any:
    def fence_read(self: Any, offset: Any, nonce: bytes) -> Any:
        if self.state is OwnerState.SERVING:
            self._view._follow(offset)
            return []
        return original(self, offset, nonce)

    return fence_read


def _serves_before_its_fence(original: Any) -> Any:
    def fence_read(self: Any, offset: Any, nonce: bytes) -> Any:
        if self.state is OwnerState.REPLAYING and self.epoch is None:
            return original(self, offset, self._nonce)
        return original(self, offset, nonce)

    return fence_read


def _nothing(_original: Any) -> Any:
    return lambda *_, **__: []


def _none(_original: Any) -> Any:
    return lambda *_, **__: None


def _forgets_answers(original: Any) -> Any:
    def request(self: Any, request: Any, at_ms: int) -> Any:
        self.clients.pop(coordinator_state.client_key(request.client_id), None)
        return original(self, request._replace(acked_through=0), at_ms)

    return request


def _ends_before_markers(original: Any) -> Any:
    def drive(self: Any, sequence: int, now_ms: int, effects: list[Any]) -> None:
        before = len(effects)
        original(self, sequence, now_ms, effects)
        if any(type(it).__name__ in {"EndParticipants", "ReadEnds"} for it in effects[before:]):
            del effects[before:]
            effects.append(Propose(Ended(sequence)))

    return drive


def _ends_as_registered(_original: Any) -> Any:
    def ends_read(self: Any, sequence: int, _ends: Any) -> Any:
        txn = self.state.transactions.get(sequence)
        if txn is None or txn.state is not coordinator_state.TxnState.ABORTING:
            return []
        found = {data: (EndOffset(one.start_offset), 0) for data, one in txn.partitions.items()}
        return [coordinator._participants(self.coordinator, txn, found)]  # pyright: ignore[reportPrivateUsage]

    return ends_read


def _does_not_wait_for_reports(_original: Any) -> Any:
    async def flush(_self: Any) -> None:
        await asyncio.sleep(0)

    return flush


def _counts_what_was_sent(_original: Any) -> Any:
    async def flush(self: Any) -> None:
        if self._unreported:
            landed = asyncio.get_running_loop().create_future()
            self._flushing.append(landed)
            await landed
        for writes in self.writes.values():
            writes.sent = writes.count
            writes.error = None

    return flush


def _watermark_too_high(_original: Any) -> Any:
    return property(lambda self: self.next_sequence)


def _undecided_is(end_offset: int) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def unmarked(self: Any, offset: int, txn: bytes) -> int:
            known = original(self, offset, txn)
            return end_offset if known is None else known

        return unmarked

    return make


def _snapshot_decides_nothing(_original: Any) -> Any:
    return lambda self, offset, _txn: -2 if offset < self._lost_below else None


def _newer_snapshot_at_once(_original: Any) -> Any:
    def snapshot_read(self: Any, snapshot: Any) -> Any:
        self._take_up(snapshot)
        return self._effects([])

    return snapshot_read


def _nothing_open(original: Any) -> Any:
    return lambda *args: original(*args)._replace(open=())


def _does_not_read_on(original: Any) -> Any:
    def marker_end_read(self: Any, counter: int, _end: Any, now_ms: int) -> Any:
        return original(self, counter, EndOffset(0), now_ms)

    return marker_end_read


def _covers_everything(_original: Any) -> Any:
    return lambda self: self.position


def _aborts_are_forgotten(original: Any) -> Any:
    def snapshot(self: Any, found: Any, open_on: Any, _watermarks: Any, position: Any) -> Any:
        return original(self, found, open_on, dict.fromkeys(range(8), 1 << 40), position)

    return snapshot


def _no_conflict(_original: Any) -> Any:
    return lambda *_: None


def _abort_acknowledges(original: Any) -> Any:
    def settle(self: Any, txn: Any, *, committed: bool, client_key: bytes = b"") -> None:
        del committed
        original(self, txn, committed=True, client_key=client_key)

    return settle


def _commit_does_not_acknowledge(original: Any) -> Any:
    def settle(self: Any, txn: Any, *, committed: bool, client_key: bytes = b"") -> None:
        del committed
        original(self, txn, committed=False, client_key=client_key)

    return settle


def _registers_nothing(original: Any) -> Any:
    async def add(self: Any, txn: Any, _partitions: Any, subscriptions: Any) -> None:
        if subscriptions:
            await original(self, txn, (), subscriptions)

    return add


ABLATIONS = (
    Ablation("B1", "an owner serves at the first fence that it reads", LogOwner, "fence_read",
             _serves_before_its_fence),
    Ablation("B2", "every stamped entry is effective", EffectiveLog, "entry_read",
             _every_entry_counts),
    Ablation("B2s", "an entry is effective again with an old serial", EffectiveLog, "entry_read",
             _repeated_serial_counts),
    Ablation("B4", "an owner goes on after the fence of another one", LogOwner, "fence_read",
             _goes_on_after_a_fence),
    Ablation("B5", "a write that failed is not decided by a no-op", LogOwner, "write_failed",
             _nothing),
    Ablation("C1b", "answers are not remembered: a repeated request is carried out again",
             CoordinatorState, "_request", _forgets_answers),
    Ablation("C2", "further partitions of a transaction are not registered",
             TransactionRegistration, "_add", _registers_nothing),
    Ablation("C3", "an abort is written with the end offset of the registration", Coordinator,
             "ends_read", _ends_as_registered),
    Ablation("C4", "a transaction ends before its markers are written", Coordinator, "_drive",
             _ends_before_markers),
    Ablation("C6", "a commit does not ask whether all records were delivered",
             TransactionRecords, "flush", _counts_what_was_sent),
    Ablation("C6r", "a commit does not wait for reports", TransactionRecords, "flush",
             _does_not_wait_for_reports),
    Ablation("C7", "the low watermark passes open transactions", CoordinatorState,
             "low_watermark", _watermark_too_high),
    Ablation("D2", "an undecided record is delivered", PartitionFilter, "_unmarked",
             _undecided_is(_VISIBLE)),
    Ablation("D2h", "an undecided record is passed over", PartitionFilter, "_unmarked",
             _undecided_is(_HIDDEN)),
    Ablation("D4", "a snapshot decides no record", PartitionFilter, "_unmarked",
             _snapshot_decides_nothing),
    Ablation("D4n", "a newer snapshot is used while records below its F wait", PartitionFilter,
             "snapshot_read", _newer_snapshot_at_once),
    Ablation("E1", "a barrier names no open transaction", coordinator, "barrier_of",
             _nothing_open),
    Ablation("E1m", "a snapshot does not wait for the markers before its barrier",
             SnapshotWriter, "marker_end_read", _does_not_read_on),
    Ablation("E3", "markers are trimmed that no snapshot has absorbed", SnapshotWriter,
             "_covered_to", _covers_everything),
    Ablation("E5", "aborted transactions are forgotten while their records are in the log",
             TransactionBuffer, "snapshot", _aborts_are_forgotten),
    Ablation("G", "two transactions may acknowledge one message", SubscriptionAcks,
             "_individual_conflict", _no_conflict),
    Ablation("Ga", "an aborted transaction acknowledges", SubscriptionAcks, "settle",
             _abort_acknowledges),
    Ablation("Gc", "a committed transaction does not acknowledge", SubscriptionAcks, "settle",
             _commit_does_not_acknowledge),
)  # fmt: skip
"""The rules, in order of their letters."""


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Switches a rule off; an empty name switches nothing off."""
    if not rule:
        yield
        return
    ablation = next(it for it in ABLATIONS if it.rule == rule)
    original = getattr(ablation.owner, ablation.name)
    with patch.object(ablation.owner, ablation.name, ablation.make(original)):
        yield
