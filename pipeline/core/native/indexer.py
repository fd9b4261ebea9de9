"""Indexes the aborted native transactions of one data partition: a pure machine.

*Source*: docs/protocols F2, F3, E8.

*Invariants*:
- F3 Every aborted record below the position is in a range, and no other record is; ranges are
  disjoint and ascend.
- F3 The written index is complete at every moment: ranges and the coverage that counts them are
  written in one native transaction.
- A run of ranges is written again, longer, until it is full. A full run never changes, and is
  deleted once the log start has passed it.
- Memory does not grow with the log: one run, and an extent for each run that is written.

An index counts as written when its records are composed, because a failed write ends the indexer.
Another indexer then begins with the index in the topic, and with a new run.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stilltide.pipeline.core.native.batch_filter import BatchFilter, RangeBuilder
from stilltide.pipeline.core.native.index_table import RunExtent, StoredIndex
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.native.aborted_index import (
    Coverage,
    coverage_key,
    encode_coverage,
    encode_run,
    run_key,
)
from stilltide.schemas.native.transactions import AbortedTransaction, Batch
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition

IndexRecord = tuple[bytes, bytes | None]
"""Key and value; the value None is a tombstone."""


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """When the index is written.

    Attributes:
        run_ranges_max: most ranges in one record, about 4 bytes each, >= 1.
        full_runs_max: full runs that are held until they are written, >= 1.
        delay_ms_max: longest time until a change of any kind is written, >= 0.
    """

    run_ranges_max: int = 1000
    full_runs_max: int = 16
    delay_ms_max: int = 1000


@dataclass(frozen=True, slots=True)
class WriteIndex:
    """Effect: write these records to aborted-index in one native transaction."""

    records: tuple[IndexRecord, ...]


class PartitionIndexer:
    """Indexes one data partition, from fetches at read_committed from `position` on (F3).

    Args:
        data: the data partition.
        topic_id: id of the topic now.
        stored: the partition's index in aborted-index; None: there is none.
        log_start: log start offset now.
        limits: when the index is written.

    Attributes:
        position: offset at which the next fetch begins.
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
        self._closed: list[Range] = []  # ranges of the open run
        self._full: list[tuple[RunExtent, bytes]] = []  # full runs not written yet
        self._extents: deque[RunExtent] = deque()  # full runs that are written
        self._open_written: Offset | None = None
        self._void: list[bytes] = []
        self._changed_ms: int | None = None
        covered_to = 0
        if stored is not None and stored.coverage.topic_id == topic_id:
            self._extents.extend(stored.extents)
            covered_to = stored.coverage.covered_to
            log_start = max(log_start, stored.coverage.covered_from)
        elif stored is not None:
            # The stored offsets belong to another topic of the same name (E8).
            self._void = [run_key(data, extent.first) for extent in stored.extents]
        self.position = max(Offset(covered_to), log_start)
        # Position, log start, last stable offset; the first fetch always counts as a change.
        self._seen: tuple[Offset, Offset, EndOffset] = (self.position, log_start, EndOffset(-1))

    @property
    def lag(self) -> int:
        """Number of offsets from the position to the last stable offset of the last fetch."""
        return max(0, self._seen[2] - self.position)

    @property
    def range_count(self) -> int:
        """How many ranges the index has, written or not."""
        full = sum(extent.range_count for extent, _ in self._full)
        written = sum(extent.range_count for extent in self._extents)
        return written + full + len(self._open_run())

    @property
    def deadline_ms(self) -> int | None:
        """When `tick` is needed next; None: not before the next fetch."""
        return None if self._changed_ms is None else self._changed_ms + self._limits.delay_ms_max

    def fetched(
        self,
        batches: Sequence[Batch],
        aborted: Iterable[AbortedTransaction],
        log_start: Offset,
        last_stable_offset: EndOffset,
        now_ms: int,
    ) -> list[WriteIndex]:
        """Takes a fetch at read_committed from `position`, which may hold no batch.

        A fetch with a last stable offset below the position is ignored: a new leader learns late
        how far the log is replicated.
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
        """Takes note that the log does not hold the position, because retention has passed it.

        Raises:
            AbortedIndexError: the log ends below the position, so records at its end were lost.
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
        """Writes changes that have waited for `delay_ms_max`."""
        deadline_ms = self.deadline_ms
        return self.flush() if deadline_ms is not None and now_ms >= deadline_ms else []

    def flush(self) -> list[WriteIndex]:
        """Writes all changes since the last write at once."""
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
        # An older fetch may be reported later; the log start of the coverage never goes back.
        log_start = max(log_start, self._seen[1])
        self.position = max(self.position, log_start)
        now = (self.position, log_start, last_stable_offset)
        if now != self._seen and self._changed_ms is None:
            self._changed_ms = now_ms
        self._seen = now
        if len(self._full) >= self._limits.full_runs_max:
            return self.flush()
        return self.tick(now_ms)

    def _close(self, range_: Range) -> None:
        self._closed.append(range_)
        if len(self._closed) < self._limits.run_ranges_max:
            return
        extent = RunExtent(self._closed[0].first, range_.end, len(self._closed))
        self._full.append((extent, encode_run(self._topic_id, self._closed)))
        self._closed = []
        self._open_written = None

    def _trim(self) -> list[IndexRecord]:
        """Tombstones of the runs below the log start."""
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

    def _open_run(self) -> list[Range]:
        """The ranges of the open run; the last one may still become longer."""
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
