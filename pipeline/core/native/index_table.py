"""The indexes in a partition of aborted-index, read at any state of its compaction.

*Source*: docs/protocols F3, F4, E8. Used by the indexer and by readers of the index.

*Invariants*: an index is a coverage and exactly as many runs and ranges as the coverage names, all
of one topic id; runs ascend and do not overlap.

Refuses: to take missing ranges for the absence of aborted records (F4).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.core.native.batch_filter import AbortedRanges
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.native.aborted_index import (
    Coverage,
    IndexRun,
    RunKey,
    coverage_key,
    decode_coverage,
    decode_key,
    decode_run,
    run_key,
)
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition


class RunExtent(NamedTuple):
    """First offset, end offset and number of ranges of a run."""

    first: Offset
    end: EndOffset
    range_count: int


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """The complete index of one data partition.

    Attributes:
        coverage: offsets for which the index knows every aborted range.
        extents: extents of the index's runs, ascending.
        ranges: all aborted ranges; empty if the table does not keep ranges.
    """

    coverage: Coverage
    extents: tuple[RunExtent, ...]
    ranges: AbortedRanges

    def covers(self, first: Offset, until: EndOffset) -> bool:
        """Whether every aborted range in `[first, until)` is known (F4)."""
        return self.coverage.covered_from <= first and until <= self.coverage.covered_to


class IndexTable:
    """Takes the committed records of a partition of aborted-index, in order.

    Args:
        keep_ranges: whether ranges are kept; else only the extents of the runs, which take 100
            bytes for a thousand ranges.
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
        """Every key of a data partition in the topic, even if the index is not complete."""
        keys = [run_key(data, first) for first in self._runs.get(data, ())]
        return [*keys, coverage_key(data)] if data in self._coverages else keys

    def claimed(self, data: TopicPartition) -> tuple[Coverage, str]:
        """The coverage of a data partition, and why its index is not complete; "" if it is.

        Raises:
            KeyError: the data partition has no coverage.
        """
        try:
            self.index(data)
        except AbortedIndexError as error:
            return self._coverages[data], error.detail
        return self._coverages[data], ""

    def index(self, data: TopicPartition) -> StoredIndex | None:
        """The index of a data partition; None when there is none.

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
            present = f"{len(extents)} runs with {range_count} ranges"
            named = f"{coverage.run_count} with {coverage.range_count}"
            raise _broken(data, f"{present}; its coverage names {named}")
        _check_order(data, extents, coverage)
        return StoredIndex(coverage, extents, AbortedRanges(_ranges(run for _, run in runs)))


def _ranges(runs: Iterator[IndexRun | None]) -> Iterator[Range]:
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
