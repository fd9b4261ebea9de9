"""Tables under any history: open transactions, snapshots, crashes, two writers, retention.

*Source*: rules K1, K2, K3, K4, K5.
"""

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stilltide.pipeline.core.tables.increments import (
    Increments,
    PartitionBounds,
    ScanTails,
    StoreBatch,
    TopicBounds,
    WaitsFor,
)
from stilltide.pipeline.errors import TableError
from stilltide.schemas.tables.progress import NOTHING, TableProgress
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

PARTITIONS = st.integers(0, 1)
IDS = {"t": b"i" * 16}


class ModelTable:
    """Batches by number; of several writers of a number the first one succeeds (K5)."""

    def __init__(self) -> None:
        self.batches: dict[int, tuple[TableProgress, list[tuple[int, int]]]] = {}

    def load(self) -> TableProgress:
        """The last progress."""
        return self.batches[max(self.batches)][0] if self.batches else NOTHING

    def store(self, progress: TableProgress, records: list[tuple[int, int]]) -> bool:
        """The atomic step (K2)."""
        if progress.number in self.batches:
            return False
        self.batches[progress.number] = progress, records
        return True


class TablesOfTopics(RuleBasedStateMachine):
    """A topic with transactions, and two writers of one table that do not know of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[list[int]] = [[], []]  # the transaction of each record; 0: plain
        self.starts = [0, 0]
        self.outcomes: dict[int, bool] = {}
        self.table = ModelTable()
        self.writers: list[Increments | None] = [None, None]
        self.planned: list[tuple[StoreBatch, list[tuple[int, int]], list[int]] | None]
        self.planned = [None, None]
        self.sequence = 0
        self.origins = [0, 0]

    @rule(partition=PARTITIONS, txn=st.integers(0, 3))
    def write(self, partition: int, txn: int):
        """A plain record, or one of a recent transaction that is open, or of a new one."""
        found = self.sequence - txn
        if txn and (found <= 0 or found in self.outcomes):
            self.sequence += 1
            found = self.sequence
        self.logs[partition].append(found if txn else 0)

    @rule(back=st.integers(0, 3), committed=st.booleans())
    def end(self, back: int, committed: bool):  # noqa: FBT001 - Hypothesis passes by name
        """A transaction ends."""
        txn = self.sequence - back
        if txn > 0:
            self.outcomes.setdefault(txn, committed)

    @rule(partition=PARTITIONS, by=st.integers(1, 3))
    def delete(self, partition: int, by: int):
        """Retention."""
        self.starts[partition] = min(self.starts[partition] + by, len(self.logs[partition]))

    @rule(writer=PARTITIONS, offsets_max=st.integers(1, 5))
    def start(self, writer: int, offsets_max: int):
        """A process starts, or starts again after a crash."""
        self.writers[writer] = Increments(["t"], self.table.load(), offsets_max)
        self.planned[writer] = None

    @rule(writer=PARTITIONS, ahead=st.booleans())
    def plan(self, writer: int, ahead: bool):  # noqa: FBT001 - as above
        """A writer reads on and plans its next batch."""
        increments = self.writers[writer]
        if increments is None:
            return
        waiting = increments.blocked.items()
        decided = [data for data, first in waiting if first.txn.sequence in self.outcomes]
        try:
            increments.bounds_read(self.bounds(ahead=ahead), decided)
        except TableError:
            positions = increments.stored.positions
            starts = {TopicPartition("t", n): start for n, start in enumerate(self.starts)}
            assert any(positions.get(data, start) < start for data, start in starts.items()), "K4"
            self.writers[writer] = None
            return
        effects = increments.plan()
        if effects and isinstance(effects[0], ScanTails):
            effects = increments.scanned(self.scan(effects[0]))
        self.planned[writer] = None
        for effect in effects:
            assert isinstance(effect, StoreBatch)
            self.planned[writer] = effect, self.read(effect), list(self.starts)

    @rule(writer=PARTITIONS, answered=st.booleans())
    def store(self, writer: int, answered: bool):  # noqa: FBT001 - as above
        """The planned batch is stored; or another writer was faster, or the answer is lost."""
        planned, increments = self.planned[writer], self.writers[writer]
        if planned is None or increments is None:
            return
        effect, records, starts = planned
        self.planned[writer] = None
        stored = self.table.store(effect.progress, records)
        if stored and effect.progress.number == 1:
            self.origins = starts
        if stored and answered:
            increments.batch_stored(effect.progress)
        else:
            self.writers[writer] = None  # K3: the next start loads the progress

    def bounds(self, *, ahead: bool) -> TopicBounds:
        """Everything is stable; M is the first undecided offset, or 0."""
        found: dict[TopicPartition, PartitionBounds] = {}
        for number, log in enumerate(self.logs):
            open_at = (at for at, txn in enumerate(log) if txn and txn not in self.outcomes)
            m = next(open_at, len(log)) if ahead else 0
            found[TopicPartition("t", number)] = PartitionBounds(
                Offset(self.starts[number]), EndOffset(len(log)), EndOffset(m)
            )
        return TopicBounds(IDS, found)

    def scan(self, effect: ScanTails) -> dict[TopicPartition, WaitsFor]:
        """The first undecided record of each range."""
        found: dict[TopicPartition, WaitsFor] = {}
        for data, start, end in effect.reads:
            for at in range(start, end):
                txn = self.logs[data.partition][at]
                if txn and txn not in self.outcomes:
                    found.setdefault(data, WaitsFor(Offset(at), TxnId(0, txn)))
        return found

    def read(self, effect: StoreBatch) -> list[tuple[int, int]]:
        """K1: what is read is decided."""
        records: list[tuple[int, int]] = []
        for data, start, end in effect.reads:
            for at in range(start, end):
                txn = self.logs[data.partition][at]
                assert not txn or txn in self.outcomes, "K1"
                if not txn or self.outcomes[txn]:
                    records.append((data.partition, at))
        return records

    @precondition(lambda self: bool(self.table.batches))
    @invariant()
    def the_table_holds_each_committed_record_once(self):
        """K3: up to its positions, from the log starts of the first batch on."""
        held = [record for _, records in self.table.batches.values() for record in records]
        assert len(held) == len(set(held)), "a record twice"
        for number, log in enumerate(self.logs):
            data = TopicPartition("t", number)
            position = self.table.load().positions[data]
            mine = [at for partition, at in held if partition == number]
            visible = [
                at
                for at in range(self.origins[number], position)
                if not log[at] or self.outcomes.get(log[at], False)
            ]
            assert sorted(mine) == visible, "a record is missing"


TestTables = TablesOfTopics.TestCase
