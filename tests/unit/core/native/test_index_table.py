"""F3, F4: what an index that is not whole is taken for, and when an indexer writes."""

import pytest

from stilltide.pipeline.core.native.batch_filter import AbortedRanges
from stilltide.pipeline.core.native.index_table import IndexTable
from stilltide.pipeline.core.native.indexer import IndexLimits, PartitionIndexer
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.native.aborted_index import (
    Coverage,
    coverage_key,
    encode_coverage,
    encode_run,
    run_key,
)
from stilltide.schemas.native.transactions import AbortedTransaction, Batch, Control
from stilltide.schemas.values import Range, TopicPartition

DATA = TopicPartition("t", 3)
ID = bytes(16)
RUNS = {0: [Range(0, 5), Range(7, 9)], 20: [Range(20, 30)]}
COVERAGE = Coverage(ID, 0, 40, 41, 2, 3)


def table(runs: dict[int, list[Range]], coverage: Coverage | None) -> IndexTable:
    """What a topic with these records says."""
    made = IndexTable(keep_ranges=True)
    for first, ranges in runs.items():
        made.record_read(run_key(DATA, first), encode_run(ID, ranges))
    if coverage is not None:
        made.record_read(coverage_key(DATA), encode_coverage(coverage))
    return made


def test_a_whole_index_is_read():
    """Its ranges in order, whatever the order of the records, and its coverage."""
    stored = table(dict(reversed(RUNS.items())), COVERAGE).index(DATA)
    assert stored is not None
    assert list(stored.ranges) == [*RUNS[0], *RUNS[20]]
    assert stored.covers(0, 40)
    assert not stored.covers(0, 41)
    assert table({}, None).index(DATA) is None


@pytest.mark.parametrize(
    ("runs", "coverage"),
    [
        ({0: RUNS[0]}, COVERAGE),
        (RUNS, COVERAGE._replace(run_count=1)),
        (RUNS, COVERAGE._replace(range_count=4)),
        (RUNS, None),
        ({0: [Range(0, 21)], 20: RUNS[20]}, COVERAGE._replace(range_count=2)),
        (RUNS, COVERAGE._replace(covered_to=29)),
    ],
    ids=["run gone", "run too many", "range gone", "no coverage", "overlap", "beyond coverage"],
)
def test_what_is_not_whole_is_an_error(runs: dict[int, list[Range]], coverage: Coverage | None):
    """F4: a gap is never taken for no aborted data; the error names the partition."""
    with pytest.raises(AbortedIndexError, match="t/3") as caught:
        table(runs, coverage).index(DATA)
    assert "stilltide index drop" in caught.value.hint


def test_a_record_of_something_else_is_an_error():
    """The topic holds nothing else."""
    with pytest.raises(DecodeError):
        table({}, None).record_read(b"x", b"y")


def test_a_tombstone_takes_a_record_back():
    """A run below the log start leaves, and so does a partition's index."""
    made = table(RUNS, COVERAGE)
    assert set(made.keys(DATA)) == {run_key(DATA, 0), run_key(DATA, 20), coverage_key(DATA)}
    for key in made.keys(DATA):
        made.record_read(key, None)
    assert made.keys(DATA) == []
    assert made.index(DATA) is None
    assert list(made) == []


def test_a_log_that_lost_its_end_is_an_error():
    """After an unclean election offsets come again with other data; a late leader is no such."""
    stored = table(RUNS, COVERAGE).index(DATA)
    indexer = PartitionIndexer(DATA, ID, stored, 0, IndexLimits())
    assert indexer.position == 40
    assert indexer.fetched([], [], 0, 39, 0) == []
    assert indexer.position == 40
    with pytest.raises(AbortedIndexError, match="lost its end"):
        indexer.out_of_range(0, 39, 0)


def test_what_is_not_covered_any_more_stays_so():
    """F4: an older log start, reported late, does not extend the coverage to deleted ranges."""
    indexer = PartitionIndexer(DATA, ID, table(RUNS, COVERAGE).index(DATA), 0, IndexLimits())
    indexer.fetched([], [], 35, 41, 0)
    (write,) = indexer.flush()
    made = IndexTable(keep_ranges=True)
    for key, value in write.records:
        made.record_read(key, value)
    stored = made.index(DATA)
    assert stored is not None
    assert (len(stored.ranges), stored.coverage.covered_from) == (0, 35)
    for successor in (indexer, PartitionIndexer(DATA, ID, stored, 10, IndexLimits())):
        successor.fetched([], [], 10, 42, 0)
        (write,) = successor.flush()
        made.record_read(*write.records[-1])
        again = made.index(DATA)
        assert again is not None
        assert again.coverage.covered_from == 35


def test_a_run_grows_until_it_is_full_and_then_stays():
    """F3: one record is rewritten while it grows; a full one is written for the last time."""
    indexer = PartitionIndexer(DATA, ID, None, 0, IndexLimits(run_ranges_max=2, delay_ms_max=0))
    written: list[set[bytes]] = []
    for step in range(5):
        base = 10 * step
        batches = [
            Batch(base, base + 1, 7, True, None, 2),
            Batch(base + 2, base + 2, 7, True, Control.ABORT, 1),
            Batch(base + 3, base + 9, -1, False, None, 7),
        ]
        (write,) = indexer.fetched(batches, [AbortedTransaction(7, base)], 0, base + 10, step)
        written.append({key for key, _ in write.records} - {coverage_key(DATA)})
    firsts = [[run_key(DATA, first)] for first in (0, 0, 20, 20, 40)]
    assert written == [set(one) for one in firsts]


def test_ranges_are_found_by_any_offset():
    """First included, end excluded; ranges that touch stay two."""
    ranges = AbortedRanges([Range(3, 5), Range(5, 6), Range(9, 10)])
    assert [it for it in range(12) if it in ranges] == [3, 4, 5, 9]
    assert len(ranges) == 3
    with pytest.raises(AssertionError):
        ranges.append(Range(9, 11))
