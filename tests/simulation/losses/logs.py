"""Losses of the rules about logs and their owners: letters A and B."""

from typing import Any

from stilltide.pipeline.core.buffered_log.accumulator import Accumulator
from stilltide.pipeline.core.buffered_log.owner import (
    EffectiveLog,
    LogGapError,
    LogOwner,
    OwnerState,
)
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.schemas.errors import DecodeError
from tests.simulation.losses.ablation import Ablation, nothing


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


def _foreign_is_damage(_original: Any) -> Any:
    def foreign_read(_self: Any, _offset: Any) -> Any:
        raise DecodeError("an entry that no owner wrote")

    return foreign_read


def _every_gap_is_a_trim(_original: Any) -> Any:
    def gap_read(_self: Any, offset: Any, _log_start: Any) -> None:
        raise LogGapError(f"a gap before {offset}")

    return gap_read


def _asks_once(_original: Any) -> Any:
    async def call(_self: Any, attempt: Any, *args: Any, **named: Any) -> Any:
        return await attempt(*args, **named)

    return call


ABLATIONS = (
    Ablation("A3", "records wait until an entry is full", Accumulator, "deadline_ms",
             lambda _: property(lambda _self: None)),
    Ablation("B1", "an owner serves at the first fence that it reads", LogOwner, "fence_read",
             _serves_before_its_fence),
    Ablation("B2", "every stamped entry is effective", EffectiveLog, "entry_read",
             _every_entry_counts,
             "what such an entry asks for counts once (C1b), and nobody answers it (B4)",
             tests="tests/unit/core/buffered_log"),
    Ablation("B2s", "an entry is effective again with an old serial", EffectiveLog, "entry_read",
             _repeated_serial_counts,
             "a writer's records keep their order, as those of Kafka's producer do",
             tests="tests/unit/core/buffered_log"),
    Ablation("B4", "an owner goes on after the fence of another one", LogOwner, "fence_read",
             _goes_on_after_a_fence),
    Ablation("B5", "a write that failed is not decided by a no-op", LogOwner, "write_failed",
             nothing,
             "a later entry decides: a repeated request, another one, or a barrier (E1)",
             tests="tests/unit/core/buffered_log"),
    Ablation("B6", "an entry that no owner wrote is damage", LogOwner, "foreign_read",
             _foreign_is_damage),
    Ablation("B7", "every gap in the offsets of a log is a trim", EffectiveLog, "gap_read",
             _every_gap_is_a_trim),
    Ablation("B9", "a call is not repeated while the cluster is away", OutageGuard, "call",
             _asks_once),
)  # fmt: skip
