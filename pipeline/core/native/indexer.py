"""Indexes the aborted native transactions of one data partition: a pure machine.

*Source*: docs/protocols F2, F3, E8.

*Invariants*:
- F3 Every record below the position that aborted lies in a range, and no other one does; ranges
  are disjoint and ascend.
- F3 What is written is whole at every moment: ranges and the coverage that counts them are one set
  of records, for one native transaction.
- What is written once never moves: a run of ranges is rewritten, longer, until it is full, and
  then only ever deleted, once the log start has passed it.
- Memory does not grow with the log: one run, and an extent for each run that is written.

An index counts as written when its records are composed: an indexer whose write fails is thrown
away, and another one begins with what the topic holds. It then begins a new run.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stilltide.pipeline.core.native.aborted_ranges import RangeBuilder
from stilltide.pipeline.core.native.batch_filter import BatchFilter
from stilltide.pipeline.core.native.index_table import RunExtent, StoredIndex
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.native.aborted_index import (
    AbortedRange,
    Coverage,
    coverage_key,
    encode_coverage,
    encode_run,
    run_key,
)
from stilltide.schemas.native.batches import AbortedTransaction, Batch
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

IndexRecord = tuple[bytes, bytes | None]
"""Key and value; without value a tombstone."""


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """When the index is written.

    Attributes:
        run_ranges_max: ranges in one record, about 4 bytes each, >= 1.
        full_runs_max: full runs held before they are written, >= 1.
        delay_ms_max: how long a change of any kind waits, >= 0.
    """

    run_ranges_max: int = 1000
    full_runs_max: int = 16
    delay_ms_max: int = 1000


@dataclass(frozen=True, slots=True)
class WriteIndex:
    """Write these records to the partition's place in aborted-index, all or none."""

    records: tuple[IndexRecord, ...]


class PartitionIndexer:
    """Feeds on committed fetches of one data partition, from `position` on.

    Args:
        data: the partition.
        topic_id: of its topic, now.
        stored: what aborted-index holds about it, None when nothing.
        log_start: of the partition, now.
        limits: when to write.

    Attributes:
        position: where the next fetch begins.
    """

    def __init__(
        self,
        data: TopicPartition,
        topic_id: bytes,
        stored: StoredIndex | None,
        log_start: Offset,
        limits: IndexLimits,
    ) -> None:
        self._data = data
        self._topic_id = topic_id
        self._limits = limits
        self._builder = RangeBuilder()
        self._closed: list[AbortedRange] = []  # of the open run
        self._full: list[tuple[RunExtent, bytes]] = []  # not written yet
        self._extents: deque[RunExtent] = deque()  # written, full
        self._open_written: Offset | None = None
        self._void: list[bytes] = []
        self._changed_ms: int | None = None
        covered_to = 0
        if stored is not None and stored.coverage.topic_id == topic_id:
            self._extents.extend(stored.extents)
            covered_to = stored.coverage.covered_to
            log_start = max(log_start, stored.coverage.covered_from)
        elif stored is not None:
            # Offsets of another topic of the same name (E8).
            self._void = [run_key(data, extent.first) for extent in stored.extents]
        self.position = max(Offset(covered_to), log_start)
        # Position, log start, last stable offset; the first fetch is always news.
        self._seen: tuple[Offset, Offset, EndOffset] = (self.position, log_start, EndOffset(-1))

    @property
    def lag(self) -> int:
        """Offsets from the position to the last stable offset that was last seen."""
        return max(0, self._seen[2] - self.position)

    @property
    def range_count(self) -> int:
        """How many ranges there are, written or not."""
        full = sum(extent.range_count for extent, _ in self._full)
        written = sum(extent.range_count for extent in self._extents)
        return written + full + len(self._open_run())

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is needed next; None: not before something is fetched."""
        return None if self._changed_ms is None else self._changed_ms + self._limits.delay_ms_max

    def fetched(
        self,
        batches: Sequence[Batch],
        aborted: Iterable[AbortedTransaction],
        log_start: Offset,
        last_stable_offset: EndOffset,
        now_ms: int,
    ) -> list[WriteIndex]:
        """Takes a committed fetch from `position`; there may be no batch in it.

        A last stable offset below the position says nothing: a new leader learns late how far the
        log is replicated.
        """
        if last_stable_offset < self.position:
            return self.tick(now_ms)
        position = self.position
        filter_ = BatchFilter(position, aborted)
        for batch in batches:
            ended = self._builder.batch_read(batch, filter_.batch_read(batch), position)
            if ended is not None:
                self._close(ended)
        self.position = filter_.position
        return self._moved(log_start, last_stable_offset, now_ms)

    def out_of_range(
        self, log_start: Offset, last_stable_offset: EndOffset, now_ms: int
    ) -> list[WriteIndex]:
        """Takes note that the log does not hold the position: retention has overtaken it.

        Raises:
            AbortedIndexError: the log ends below what was indexed, so it lost its end.
        """
        if log_start <= self.position:
            raise AbortedIndexError(
                f"{self._data} has lost its end",
                detail=f"indexed up to {self.position}; it begins at {log_start}, and its last "
                f"stable offset is {last_stable_offset}",
                hint="after an unclean leader election: drop the index of this topic, "
                "`stilltide index drop`, and audit what was read from it",
            )
        return self._moved(log_start, last_stable_offset, now_ms)

    def tick(self, now_ms: int) -> list[WriteIndex]:
        """Takes note of the time; writes what has waited long enough."""
        deadline_ms = self.deadline_ms
        return self.flush() if deadline_ms is not None and now_ms >= deadline_ms else []

    def flush(self) -> list[WriteIndex]:
        """Writes what has changed since the last time, at once."""
        if self._changed_ms is None:
            return []
        self._changed_ms = None
        records: list[IndexRecord] = [(key, None) for key in self._void]
        self._void = []
        for extent, value in self._full:
            records.append((run_key(self._data, extent.first), value))
            self._extents.append(extent)
        self._full = []
        records += self._trim()
        open_ = self._open_run()
        if open_:
            self._open_written = open_[0].first
            records.append((run_key(self._data, open_[0].first), encode_run(self._topic_id, open_)))
        records.append((coverage_key(self._data), encode_coverage(self._coverage(len(open_)))))
        return [WriteIndex(tuple(records))]

    def _moved(
        self, log_start: Offset, last_stable_offset: EndOffset, now_ms: int
    ) -> list[WriteIndex]:
        # What was read earlier may be told later: what is not covered any more stays so.
        log_start = max(log_start, self._seen[1])
        self.position = max(self.position, log_start)
        now = (self.position, log_start, last_stable_offset)
        if now != self._seen and self._changed_ms is None:
            self._changed_ms = now_ms
        self._seen = now
        if len(self._full) >= self._limits.full_runs_max:
            return self.flush()
        return self.tick(now_ms)

    def _close(self, one: AbortedRange) -> None:
        self._closed.append(one)
        if len(self._closed) < self._limits.run_ranges_max:
            return
        extent = RunExtent(self._closed[0].first, one.end, len(self._closed))
        self._full.append((extent, encode_run(self._topic_id, self._closed)))
        self._closed = []
        self._open_written = None

    def _trim(self) -> list[IndexRecord]:
        """Tombstones of the runs that lie below the log start."""
        gone: list[IndexRecord] = []
        _, log_start, _ = self._seen
        while self._extents and self._extents[0].end <= log_start:
            gone.append((run_key(self._data, self._extents.popleft().first), None))
        open_ = self._open_run()
        if open_ and open_[-1].end <= log_start:
            if self._open_written is not None:
                gone.append((run_key(self._data, self._open_written), None))
            self._closed, self._builder, self._open_written = [], RangeBuilder(), None
        return gone

    def _open_run(self) -> list[AbortedRange]:
        """Closed ranges, and the one that may still become longer."""
        last = self._builder.open
        return self._closed if last is None else [*self._closed, last]

    def _coverage(self, open_count: int) -> Coverage:
        position, log_start, last_stable_offset = self._seen
        return Coverage(
            self._topic_id,
            log_start,
            EndOffset(position),
            last_stable_offset,
            len(self._extents) + bool(open_count),
            sum(extent.range_count for extent in self._extents) + open_count,
        )
