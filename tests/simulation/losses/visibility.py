"""Losses of the rules about what readers see: letter D."""

from collections.abc import Callable
from typing import Any

from stilltide.pipeline.core.read_committed.machine import (
    MALFORMED,
    PartitionFilter,
    ResumeFetching,
)
from stilltide.pipeline.drivers.shared import txn_headers
from tests.simulation.losses.ablation import Ablation

_VISIBLE = 1 << 62
_HIDDEN = -1
_LOST = -2


def _undecided_is(end_offset: int) -> Callable[[Any], Any]:
    def make(original: Any) -> Any:
        def unmarked(self: Any, offset: int, txn: bytes) -> int:
            known = original(self, offset, txn)
            return end_offset if known is None else known

        return unmarked

    return make


def _malformed_is_plain(original: Any) -> Any:
    def txn_of(headers: Any) -> Any:
        txn = original(headers)
        return None if txn == MALFORMED else txn

    return txn_of


def _snapshot_decides_nothing(_original: Any) -> Any:
    return lambda self, offset, _txn: _LOST if offset < self._lost_below else None


def _newer_snapshot_at_once(_original: Any) -> Any:
    def snapshot_read(self: Any, snapshot: Any) -> Any:
        self._take_up(snapshot)
        return self._effects([])

    return snapshot_read


def _drops_what_waits(original: Any) -> Any:
    def records_read(self: Any, offsets: Any, txns: Any, payloads: Any) -> Any:
        effects = original(self, offsets, txns, payloads)
        while len(self._waiting) > self._waiting_max:
            self._waiting.pop()
        return effects

    return records_read


def _stays_paused(original: Any) -> Any:
    def effects(self: Any, visible: Any) -> Any:
        return [it for it in original(self, visible) if not isinstance(it, ResumeFetching)]

    return effects


ABLATIONS = (
    Ablation("D2", "an undecided record is delivered", PartitionFilter, "_unmarked",
             _undecided_is(_VISIBLE)),
    Ablation("D2h", "an undecided record is passed over", PartitionFilter, "_unmarked",
             _undecided_is(_HIDDEN)),
    Ablation("D3", "a record with a malformed header counts as a plain one", txn_headers,
             "_txn_of", _malformed_is_plain),
    Ablation("D4", "a snapshot decides no record", PartitionFilter, "_unmarked",
             _snapshot_decides_nothing),
    Ablation("D4n", "a newer snapshot is used while records below its F wait", PartitionFilter,
             "snapshot_read", _newer_snapshot_at_once),
    Ablation("D7", "records beyond the limit behind an undecided one are dropped",
             PartitionFilter, "records_read", _drops_what_waits),
    Ablation("D7r", "a partition that was paused is not fetched again", PartitionFilter,
             "_effects", _stays_paused),
)  # fmt: skip
