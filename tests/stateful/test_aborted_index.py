"""The index of aborted data: any history, slices, limits, restarts, retention, lost writes.

*Source*: rules F3, F4, E8.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stilltide.pipeline.core.native.index_table import IndexTable
from stilltide.pipeline.core.native.indexer import IndexLimits, PartitionIndexer, WriteIndex
from stilltide.schemas.native.transactions import NO_PRODUCER_ID, Control
from stilltide.schemas.values import EndOffset, TopicPartition
from tests.support.examples import examples
from tests.support.native.log import Choose, NativeLog

DATA = TopicPartition("t", 0)
LIMITS = st.builds(
    IndexLimits,
    run_ranges_max=st.integers(1, 3),
    full_runs_max=st.integers(1, 2),
    delay_ms_max=st.integers(0, 5),
)


class AbortedIndexing(RuleBasedStateMachine):
    """A model log, an indexer, and what a compacted topic keeps of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.log = NativeLog()
        self.topic: dict[bytes, bytes] = {}
        self.topic_id = 1
        self.now_ms = 0

    @initialize(limits=LIMITS)
    def start(self, limits: IndexLimits):
        """Nothing is indexed yet."""
        self.limits = limits
        self.indexer = self.recover()

    def recover(self) -> PartitionIndexer:
        """An indexer that begins with what the topic holds."""
        return PartitionIndexer(
            DATA, self.topic_id_bytes, self.table().index(DATA), self.log.start, self.limits
        )

    @property
    def topic_id_bytes(self) -> bytes:
        """Of the data topic, now."""
        return self.topic_id.to_bytes(16, "big")

    def table(self) -> IndexTable:
        """What the topic says."""
        table = IndexTable(keep_ranges=True)
        for key, value in self.topic.items():
            table.record_read(key, value)
        return table

    @rule(producer=st.integers(1, 3), count=st.integers(1, 3))
    def produce(self, producer: int, count: int):
        """A batch of a transaction."""
        self.log.produce(producer, count)

    @rule(count=st.integers(1, 3))
    def produce_outside(self, count: int):
        """A plain batch."""
        self.log.produce_outside(NO_PRODUCER_ID, count)

    @rule(producer=st.integers(1, 3), control=st.sampled_from([Control.ABORT, Control.COMMIT]))
    def mark(self, producer: int, control: Control):
        """A marker."""
        self.log.mark(producer, control)

    @rule(data=st.data(), batches_max=st.integers(1, 4), elapsed_ms=st.integers(0, 4))
    def fetch(self, data: st.DataObject, batches_max: int, elapsed_ms: int):
        """The indexer reads on; if retention has passed it, `out_of_range` is reported."""
        self.now_ms += elapsed_ms
        log, position = self.log, self.indexer.position
        stable = EndOffset(log.stable)
        if position < log.start:
            self.write(self.indexer.out_of_range(log.start, stable, self.now_ms))
            assert self.indexer.position == log.start
        else:
            answer = log.fetch(position, batches_max, chooser(data))
            self.write(
                self.indexer.fetched(answer.batches, answer.aborted, log.start, stable, self.now_ms)
            )
        deadline_ms = self.indexer.deadline_ms
        assert deadline_ms is None or deadline_ms > self.now_ms, "what is due was written"

    @rule(elapsed_ms=st.integers(0, 6))
    def tick(self, elapsed_ms: int):
        """Time passes; a change waits as long as it may, then it is written."""
        self.now_ms += elapsed_ms
        deadline_ms = self.indexer.deadline_ms
        written = self.indexer.tick(self.now_ms)
        assert bool(written) == (deadline_ms is not None and deadline_ms <= self.now_ms)
        self.write(written)

    @rule()
    def flush(self):
        """Everything is written on request; then nothing is left to write."""
        self.write(self.indexer.flush())
        assert self.indexer.deadline_ms is None
        assert self.indexer.flush() == []

    @rule(lost=st.booleans())
    def restart(self, *, lost: bool):
        """Another indexer begins with the topic; the last write of the old one may be lost."""
        if not lost:
            self.write(self.indexer.flush())
        self.indexer = self.recover()

    @rule(data=st.data())
    def trim(self, data: st.DataObject):
        """The log start moves."""
        self.log.trim(data.draw(st.integers(self.log.start, self.log.stable)))

    @rule(data=st.data())
    def compact(self, data: st.DataObject):
        """The cleaner passes."""
        self.log.compact(chooser(data))

    @rule(sure=st.sampled_from([True, False, False, False]))
    def create_anew(self, *, sure: bool):
        """E8: a topic of the same name begins; nothing of the old index counts for it."""
        if sure:
            self.log = NativeLog()
            self.topic_id += 1
            self.indexer = self.recover()
            assert self.indexer.position == 0

    def write(self, effects: list[WriteIndex]):
        """F3: all of it or nothing; a compacted topic keeps the last value of each key."""
        for effect in effects:
            for key, value in effect.records:
                if value is None:
                    self.topic.pop(key, None)
                else:
                    self.topic[key] = value

    @invariant()
    def what_is_covered_is_known(self):
        """F3, F4: in the coverage a record is aborted iff it is in a range."""
        stored = self.table().index(DATA)
        if stored is None or stored.coverage.topic_id != self.topic_id_bytes:
            return
        first, until = stored.coverage.covered_from, stored.coverage.covered_to
        assert first <= self.log.start
        assert until <= stored.coverage.last_stable_offset
        assert stored.covers(first, until)
        assert not stored.covers(first, EndOffset(until + 1))
        committed = set(self.log.committed(first, until))
        for piece in self.log.pieces:
            if piece.control is None:
                for offset in piece.offsets:
                    if self.log.start <= offset < until:
                        assert (offset in stored.ranges) == (offset not in committed)

    @invariant()
    def retention_is_followed(self):
        """F3: after a write no run is below the log start of that moment."""
        stored = self.table().index(DATA)
        if stored is not None:
            assert all(one.end > stored.coverage.covered_from for one in stored.extents)


def chooser(data: st.DataObject) -> Choose:
    """Draws one of so many."""
    return lambda count: data.draw(st.integers(0, count - 1))


AbortedIndexing.TestCase.settings = settings(max_examples=examples(250), stateful_step_count=40)
TestAbortedIndexing = AbortedIndexing.TestCase
