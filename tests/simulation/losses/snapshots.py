"""Losses of the rules about snapshots of aborted transactions: letter E."""

from itertools import count
from typing import Any

from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.coordinator import machine as coordinator
from stilltide.pipeline.core.snapshots.buffer import PendingCommits, TransactionBuffer
from stilltide.pipeline.core.snapshots.writer import Cycle, SnapshotWriter
from stilltide.schemas.values import EndOffset
from tests.simulation.losses.ablation import Ablation, none


def _nothing_open(original: Any) -> Any:
    return lambda *args: original(*args)._replace(open=())


def _any_barrier_counts(original: Any) -> Any:
    return lambda self, barrier: original(self, barrier._replace(probe=self.probe))


def _does_not_read_on(original: Any) -> Any:
    def marker_end_read(self: Any, counter: int, _end: Any, now_ms: int) -> Any:
        return original(self, counter, EndOffset(0), now_ms)

    return marker_end_read


def _holds_no_ids(original: Any) -> Any:
    return lambda self, covered_to: original(self, covered_to)._replace(unsealed={})


def _covers_everything(_original: Any) -> Any:
    return lambda self: self.position


def _own_id_each(original: Any) -> Any:
    number = count()

    def own_id(self: Any, name: str) -> str:
        own = f"-{next(number)}" if name.startswith("snapshots-") else ""
        return original(self, name) + own

    return own_id


def _recovers_no_ids(original: Any) -> Any:
    def restored(data: Any, end: Any, parts: Any, **options: Any) -> Any:
        return original(data, end._replace(unsealed={}), parts, **options)

    return restored


def _keeps_offsets(_original: Any) -> Any:
    def recreated(self: Any, topic_id: bytes) -> None:
        self._topic_id = topic_id

    return recreated


def _aborts_are_forgotten(original: Any) -> Any:
    def snapshot(self: Any, found: Any, open_on: Any, _watermarks: Any, position: Any) -> Any:
        return original(self, found, open_on, dict.fromkeys(range(8), 1 << 40), position)

    return snapshot


ABLATIONS = (
    Ablation("E1", "a barrier names no open transaction", coordinator, "barrier_of",
             _nothing_open),
    Ablation("E1p", "a barrier of another probe counts", Cycle, "barrier_read",
             _any_barrier_counts,
             "such a barrier has to arrive within the milliseconds of another writer's probe",
             tests="tests/unit/core/snapshots"),
    Ablation("E1m", "a snapshot does not wait for the markers before its barrier",
             SnapshotWriter, "marker_end_read", _does_not_read_on,
             "a marker has to be written twice, and the first one cleaned, within a probe",
             tests="tests/unit/core/snapshots"),
    Ablation("E2", "a snapshot does not hold the ids of aborted transactions",
             TransactionBuffer, "_end", _holds_no_ids),
    Ablation("E2c", "a commit is absorbed although its end is above M", PendingCommits,
             "first_above", none,
             "a reader that lacks the marker waits for a snapshot with a higher M (D2)",
             tests="tests/unit/core/snapshots"),
    Ablation("E3", "markers are trimmed that no snapshot has absorbed", SnapshotWriter,
             "_covered_to", _covers_everything),
    Ablation("E3f", "a snapshot writer does not fence its predecessor", MemoryConnector,
             "own_id", _own_id_each,
             "a late snapshot harms nobody until markers above it are trimmed, and it is replaced",
             tests="tests/unit/drivers/snapshots"),
    Ablation("E4", "a new snapshot writer does not take over the aborted ids",
             TransactionBuffer, "restored", _recovers_no_ids),
    Ablation("E5", "aborted transactions are forgotten while their records are in the log",
             TransactionBuffer, "snapshot", _aborts_are_forgotten),
    Ablation("E8", "M of a former topic counts for the topic that was created again",
             TransactionBuffer, "_recreated", _keeps_offsets),
)  # fmt: skip
