"""Rules K1, K3 and K4: which offsets the next batch of a table holds."""

from collections.abc import Mapping

import pytest

from stilltide.pipeline.core.tables.increments import (
    Increments,
    PartitionBounds,
    ScanTails,
    StoreBatch,
    TopicBounds,
    WaitsFor,
    bounded_shares,
)
from stilltide.pipeline.errors import TableError
from stilltide.schemas.tables.progress import NOTHING, TableProgress
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId

HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)
IDS = {"orders": b"i" * 16}
TXN = TxnId(0, 1)


def bounds(partitions: Mapping[TopicPartition, tuple[int, int, int]]) -> TopicBounds:
    """Bounds from (log start, stable end, M) of each partition."""
    return TopicBounds(
        IDS,
        {
            data: PartitionBounds(Offset(start), EndOffset(stable), EndOffset(decided))
            for data, (start, stable, decided) in partitions.items()
        },
    )


def read(data: TopicPartition, start: int, end: int) -> OffsetRange:
    """A range."""
    return OffsetRange(data, Offset(start), EndOffset(end))


def at(number: int, positions: Mapping[TopicPartition, int]) -> TableProgress:
    """Progress of the topic."""
    return TableProgress(number, IDS, {data: Offset(it) for data, it in positions.items()})


def machine(stored: TableProgress = NOTHING, offsets_max: int = 100) -> Increments:
    """A machine for the topic."""
    return Increments(["orders"], stored, offsets_max)


def test_a_batch_ends_at_m_without_a_scan_if_m_is_ahead():
    """K1: below M no record is undecided."""
    increments = machine()
    increments.bounds_read(bounds({HERE: (2, 10, 6)}))
    assert increments.plan() == [StoreBatch((read(HERE, 2, 6),), at(1, {HERE: 6}))]


def test_outcomes_are_needed_for_what_may_be_read_only():
    """Not for what is stored, or waits for an outcome."""
    increments = machine(at(1, {HERE: 4, THERE: 8}))
    increments.bounds_read(bounds({HERE: (0, 10, 6), THERE: (0, 8, 8)}))
    assert increments.readable() == (read(HERE, 4, 10),)
    assert increments.plan() == [StoreBatch((read(HERE, 4, 6),), at(2, {HERE: 6, THERE: 8}))]
    increments.batch_stored(at(2, {HERE: 6, THERE: 8}))
    increments.plan()
    increments.scanned({HERE: WaitsFor(Offset(7), TXN)})
    assert increments.readable() == (read(HERE, 6, 7),)


def test_what_is_past_m_is_looked_through_first():
    """K1: the batch ends before the first undecided record."""
    increments = machine(at(1, {HERE: 6, THERE: 0}))
    increments.bounds_read(bounds({HERE: (2, 10, 6), THERE: (0, 3, 9)}))
    assert increments.plan() == [ScanTails((read(HERE, 6, 10),))]
    reads = (read(HERE, 6, 8), read(THERE, 0, 3))
    wait = WaitsFor(Offset(8), TXN)
    assert increments.scanned({HERE: wait}) == [StoreBatch(reads, at(2, {HERE: 8, THERE: 3}))]
    assert increments.blocked == {HERE: wait}


def test_a_partition_that_waits_is_not_looked_through_again():
    """K1: until its transaction has an outcome, or M has passed the record."""
    increments = machine(at(1, {HERE: 6}))
    for decided, m, planned in ((False, 0, False), (True, 0, True), (False, 7, True)):
        increments.bounds_read(bounds({HERE: (0, 10, 0)}))
        assert increments.plan()
        assert increments.scanned({HERE: WaitsFor(Offset(6), TXN)}) == []
        assert increments.plan() == []
        increments.bounds_read(bounds({HERE: (0, 12, m)}), [HERE] if decided else [])
        assert bool(increments.plan()) is planned
        increments = machine(at(1, {HERE: 6}))


def test_batches_follow_each_other():
    """K3: nothing is left out and nothing repeated, also if a batch is reported twice."""
    increments = machine(offsets_max=4)
    increments.bounds_read(bounds({HERE: (0, 6, 6), THERE: (5, 7, 7)}))
    (first,) = increments.plan()
    assert first == StoreBatch((read(HERE, 0, 2), read(THERE, 5, 7)), at(1, {HERE: 2, THERE: 7}))
    assert increments.plan() == [first]
    increments.batch_stored(first.progress)
    increments.batch_stored(first.progress)
    assert increments.left == 4
    (second,) = increments.plan()
    assert second == StoreBatch((read(HERE, 2, 6),), at(2, {HERE: 6, THERE: 7}))
    increments.batch_stored(at(2, {HERE: 5, THERE: 7}))  # of another plan
    assert increments.stored == first.progress
    increments.batch_stored(second.progress)
    assert increments.plan() == []


def test_the_first_batch_stores_every_position():
    """K3: records deleted from a partition that had nothing to read are noticed later."""
    increments = machine()
    increments.bounds_read(bounds({HERE: (3, 5, 5), THERE: (7, 7, 0)}))
    (batch,) = increments.plan()
    assert isinstance(batch, StoreBatch)
    assert batch.progress.positions == {HERE: 5, THERE: 7}


@pytest.mark.parametrize(
    ("start", "stable", "says"),
    [(7, 10, "records from 6 on were deleted"), (0, 5, "below what the table holds")],
)
def test_a_position_outside_of_the_log_is_refused(start: int, stable: int, says: str):
    """K4: records were deleted unread, or the log lost its end; nothing is planned."""
    increments = machine(at(4, {HERE: 6}))
    with pytest.raises(TableError, match=says) as caught:
        increments.bounds_read(bounds({HERE: (start, stable, 0)}))
    assert caught.value.place == "orders/0@6"
    assert increments.plan() == []


def test_other_topics_are_refused():
    """K4: a table is of the topics of its first batch, by name and by id."""
    with pytest.raises(TableError, match="other topics"):
        Increments(["orders", "payments"], at(1, {HERE: 6}), 10)
    increments = machine(TableProgress(1, {"orders": b"o" * 16}, {}))
    with pytest.raises(TableError, match="another topic of this name"):
        increments.bounds_read(bounds({HERE: (0, 9, 9)}))


def test_shares_that_are_not_needed_go_to_others():
    """Together about the limit; each partition with offsets gets one at least."""
    reads = [read(HERE, 0, 2), read(THERE, 0, 100)]
    assert bounded_shares(reads, 10) == (read(HERE, 0, 2), read(THERE, 0, 8))
    assert bounded_shares(reads, 1) == (read(HERE, 0, 1), read(THERE, 0, 1))
