"""What a partition of aborted-index says, read from any legal state of a compacted topic.

*Source*: docs/protocols F3, F4, E8. One function for its users: the indexer and whoever asks the
index.

*Invariants*: an index is a coverage and exactly as many runs and ranges as it names, all of its
topic id; runs ascend and do not overlap.

Refuses: to take a gap for no aborted data (F4).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.core.native.aborted_ranges import AbortedRanges
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.native.aborted_index import (
    AbortedRange,
    Coverage,
    IndexRun,
    RunKey,
    coverage_key,
    decode_coverage,
    decode_key,
    decode_run,
    run_key,
)
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class RunExtent(NamedTuple):
    """Where a run lies, without its ranges."""

    first: Offset
    end: EndOffset
    range_count: int


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The index of one data partition, checked.

    Attributes:
        coverage: how far it goes.
        extents: its runs, ascending.
        ranges: their ranges; empty when they were not asked for.
    """

    coverage: Coverage
    extents: tuple[RunExtent, ...]
    ranges: AbortedRanges

    def covers(self, first: Offset, until: EndOffset) -> bool:
        """Whether what aborted in `[first, until)` is known; else the answer is unknown (F4)."""
        return self.coverage.covered_from <= first and until <= self.coverage.covered_to


class IndexTable:
    """Feeds on the records of a partition of aborted-index, committed ones, in their order.

    Args:
        keep_ranges: else only the extents of the runs are kept: 100 bytes for a thousand ranges.
    """

    def __init__(self, *, keep_ranges: bool) -> None:
        self._keep_ranges = keep_ranges
        self._coverages: dict[TopicPartition, Coverage] = {}
        self._runs: dict[TopicPartition, dict[Offset, tuple[RunExtent, IndexRun | None]]] = {}

    def record_read(self, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record; the last one of a key counts.

        Raises:
            DecodeError: not a record of this topic.
        """
        named = decode_key(key)
        if isinstance(named, RunKey):
            runs = self._runs.setdefault(named.data, {})
            if value is None:
                runs.pop(named.first, None)
                return
            run = decode_run(named.first, value)
            extent = RunExtent(named.first, run.ranges[-1].end, len(run.ranges))
            runs[named.first] = extent, run if self._keep_ranges else None
        elif value is None:
            self._coverages.pop(named.data, None)
        else:
            self._coverages[named.data] = decode_coverage(value)

    def __iter__(self) -> Iterator[TopicPartition]:
        """The data partitions that have an index."""
        return iter(self._coverages)

    def keys(self, data: TopicPartition) -> list[bytes]:
        """Every key that the topic holds for a data partition, whether or not that is whole."""
        keys = [run_key(data, first) for first in self._runs.get(data, ())]
        return [*keys, coverage_key(data)] if data in self._coverages else keys

    def claimed(self, data: TopicPartition) -> tuple[Coverage, str]:
        """What the index of a data partition says of itself, and why that is not so, or nothing.

        Raises:
            KeyError: there is none.
        """
        try:
            self.index(data)
        except AbortedIndexError as error:
            return self._coverages[data], error.detail
        return self._coverages[data], ""

    def index(self, data: TopicPartition) -> StoredIndex | None:
        """The index of a data partition, None when there is none.

        Raises:
            AbortedIndexError: runs or ranges are missing, or overlap.
        """
        coverage = self._coverages.get(data)
        runs = [run for _, run in sorted(self._runs.get(data, {}).items())]
        if coverage is None:
            if runs:
                raise _broken(data, f"{len(runs)} runs of ranges, and no coverage")
            return None
        extents = tuple(extent for extent, _ in runs)
        range_count = sum(extent.range_count for extent in extents)
        if (len(extents), range_count) != (coverage.run_count, coverage.range_count):
            found = f"{len(extents)} runs with {range_count} ranges"
            named = f"{coverage.run_count} with {coverage.range_count}"
            raise _broken(data, f"{found}; its coverage names {named}")
        _check_order(data, extents, coverage)
        return StoredIndex(coverage, extents, AbortedRanges(_ranges(run for _, run in runs)))


def _ranges(runs: Iterator[IndexRun | None]) -> Iterator[AbortedRange]:
    for run in runs:
        if run is not None:
            yield from run.ranges


def _check_order(data: TopicPartition, extents: tuple[RunExtent, ...], coverage: Coverage) -> None:
    end = 0
    for extent in extents:
        if extent.first < end:
            raise _broken(data, f"a run begins at {extent.first}, before the end {end} of another")
        end = extent.end
    if end > coverage.covered_to:
        raise _broken(data, f"a range ends at {end}, behind the coverage to {coverage.covered_to}")


def _broken(data: TopicPartition, detail: str) -> AbortedIndexError:
    return AbortedIndexError(
        f"the index of aborted transactions of {data} is not whole",
        detail=detail,
        hint="something else writes to aborted-index; drop the index of this partition: "
        "`stilltide index drop`",
    )
