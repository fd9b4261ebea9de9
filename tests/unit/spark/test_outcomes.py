from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.errors import FatalError
from stilltide.connectors.spark.read_committed import (
    BROADCAST_ROW_BYTES,
    BROADCAST_SHARE,
    classify,
    committed,
    heaps,
    must_shuffle,
    with_txn,
)
from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.outcomes import (
    OUTCOMES_ARROW_SCHEMA,
    decisions_of,
    mixed_transactions,
    outcome_table,
)
from stilltide.pipeline.jobs.read_committed import ONCE_MIN, committed_once
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.headers import TXN
from stilltide.schemas.snapshots.snapshots import AbortedIds, Floors, SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.support.spark.session import Header, kafka_frame

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 1)
FIRST, SECOND, THIRD = TxnId(0, 1), TxnId(0, 2), TxnId(2**64 - 1, 2**64 - 1)
IDS = {"orders": b"\1" * 16, "payments": b"\2" * 16}
RANGES = tuple(OffsetRange(data, Offset(0), EndOffset(9)) for data in (ORDERS, PAYMENTS))


def marker(data: TopicPartition, txn: TxnId, *, committed: bool = True) -> Marker:
    """A marker over offsets [0, 9)."""
    return Marker(data, txn, committed, EndOffset(0), EndOffset(9), 1, b"")


def snapshot(ids: AbortedIds, floors: Floors | None = None, *, position: int = 5) -> Snapshot:
    """A snapshot that hides these ids and what lies below the floors."""
    end = SnapshotEnd(
        IDS["orders"], EndOffset(position), EndOffset(0), 1, (), ids, floors or {}, EndOffset(0), ()
    )
    aborted = AbortedSet(end.floors)
    aborted.update(ids)
    return Snapshot(end, aborted)


def evidence(
    found: Sequence[Marker], snapshots: dict[TopicPartition, Snapshot] | None = None
) -> TopicOutcomes:
    """What is known of the two partitions."""
    return TopicOutcomes(RANGES, IDS, tuple(found), (), {}, snapshots or {})


def test_a_transaction_with_two_outcomes_is_mixed():
    """Commit on one partition and abort on another; two commits are none."""
    found = [
        marker(ORDERS, SECOND),
        marker(PAYMENTS, SECOND, committed=False),
        marker(ORDERS, FIRST),
        marker(PAYMENTS, FIRST),
    ]
    assert mixed_transactions(evidence(found)) == [SECOND]


@pytest.mark.parametrize("data", [ORDERS, PAYMENTS])
def test_a_snapshot_may_be_what_contradicts_a_marker(data: TopicPartition):
    """A commit marker and an aborted set that holds the transaction, there or elsewhere."""
    known = evidence([marker(ORDERS, SECOND), marker(ORDERS, FIRST)], {data: snapshot({0: [2]})})
    assert mixed_transactions(known) == [SECOND]


def test_markers_outrank_aborted_sets_and_no_key_comes_twice(spark: SparkSession):
    """The join of `classify` would double records whose key came twice."""
    known = evidence(
        [marker(ORDERS, FIRST), marker(ORDERS, SECOND, committed=False)],
        {ORDERS: snapshot({0: [1, 2], 2**64 - 1: [2**63 - 1]}, {3: 7}), PAYMENTS: snapshot({})},
    )
    decisions = decisions_of(spark, known)
    outcomes = decisions.outcomes.select("topic", "partition", "txn", "committed")
    malformed = outcomes.filter("octet_length(txn) = 0").collect()
    assert sorted((it[0], it[1], it[3]) for it in malformed) == [
        (*ORDERS, False),
        (*PAYMENTS, False),
    ]
    rows = outcomes.filter("octet_length(txn) > 0").collect()
    found = {(it[0], it[1], TxnId.from_bytes(bytes(it[2]))): it[3] for it in rows}
    assert len(rows) == len(found)
    assert found == {
        (*ORDERS, FIRST): True,
        (*ORDERS, SECOND): False,
        (*ORDERS, TxnId(2**64 - 1, 2**63 - 1)): False,
    }
    assert decisions.positions is not None
    assert set(decisions.positions.collect()) == {(*ORDERS, 5), (*PAYMENTS, 5)}
    assert decisions.floors is not None
    ((*place, coordinator, floor),) = decisions.floors.collect()
    assert (tuple(place), bytes(coordinator)) == (ORDERS, (3).to_bytes(8))
    assert TxnId.from_bytes(bytes(floor)) == TxnId(3, 7)


def test_without_snapshots_nothing_is_joined_for_them(spark: SparkSession):
    """An audit of a cluster without snapshots costs what it did."""
    decisions = decisions_of(spark, evidence([marker(ORDERS, FIRST)]))
    assert (decisions.positions, decisions.floors) == (None, None)


def test_every_column_of_every_kind_of_outcome():
    """E8: offsets of a former topic are null; so is a count that no marker names."""
    found = [
        marker(ORDERS, FIRST)._replace(topic_id=IDS["orders"], record_count=7),
        marker(ORDERS, SECOND)._replace(topic_id=b"\3" * 16),
        marker(PAYMENTS, THIRD, committed=False),
        marker(PAYMENTS, FIRST)._replace(end_offset=None),
    ]
    known = evidence(found, {ORDERS: snapshot({0: [1, 5]})})
    rows = outcome_table(known, RANGES, OUTCOMES_ARROW_SCHEMA.names, audited=True).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (*ORDERS, FIRST.to_bytes(), True, 0, 9, 7, 0, 9),
        (*ORDERS, SECOND.to_bytes(), True, None, None, None, 0, 9),
        (*PAYMENTS, THIRD.to_bytes(), False, 0, 9, None, 0, 9),
        (*PAYMENTS, FIRST.to_bytes(), True, 0, None, 1, 0, 9),
        (*ORDERS, TxnId(0, 5).to_bytes(), False, None, None, None, 0, 9),
        (*ORDERS, b"", False, None, None, None, 0, 9),
        (*PAYMENTS, b"", False, None, None, None, 0, 9),
    ]


def test_only_what_can_touch_the_ranges_that_are_read_is_taken():
    """Transactions of other partitions, and commits that begin past the end; no abort ever."""
    reads = [RANGES[0]._replace(end=EndOffset(4))]
    found = [
        marker(ORDERS, FIRST)._replace(start_offset=EndOffset(4)),
        marker(ORDERS, SECOND)._replace(start_offset=EndOffset(3)),
        marker(ORDERS, THIRD, committed=False)._replace(start_offset=EndOffset(4)),
        marker(PAYMENTS, SECOND),
    ]
    known = evidence(found, {PAYMENTS: snapshot({0: [5]})})
    table = outcome_table(known, reads, ["topic", "txn"], audited=False)
    txns = [(row["topic"], row["txn"]) for row in table.to_pylist()]
    assert txns == [("orders", it) for it in (SECOND.to_bytes(), THIRD.to_bytes(), b"")]
    assert outcome_table(known, reads, ["txn"], audited=True).num_rows == 4


def plan_of(frame: DataFrame) -> str:
    """The plan by which Spark makes a frame."""
    jvm_frame: Any = frame._jdf
    return jvm_frame.queryExecution().executedPlan().toString()


def test_many_outcomes_are_shuffled_and_decide_the_same(spark: SparkSession):
    """Beyond the budget of a broadcast the joins are sorted ones; every class stays."""
    known = evidence(
        [marker(ORDERS, FIRST), marker(ORDERS, SECOND, committed=False)],
        {ORDERS: snapshot({0: [7]}, {3: 7}, position=6)},
    )
    few = decisions_of(spark, known, audited=False)
    many = few._replace(shuffled=True)
    ids = (FIRST, SECOND, TxnId(0, 7), TxnId(3, 1), TxnId(0, 9), None)
    values = [*(txn and txn.to_bytes() for txn in ids), *[None] * 4, b"short", FIRST.to_bytes()]
    headers: list[list[Header] | None] = [value and [(TXN, value)] for value in values]
    rows = [row for row in enumerate(headers) if row[0] < len(ids) or row[1]]
    records = kafka_frame(spark, rows)
    of_each = [
        {row.offset: row.visibility for row in classify(with_txn(records), one).collect()}
        for one in (few, many)
    ]
    assert of_each[0] == of_each[1]
    kept = [{row.offset for row in committed(records, one).collect()} for one in (few, many)]
    assert kept[0] == kept[1] == {0, 4, 5}
    assert "SortMergeJoin" in plan_of(committed(records, many))


def test_many_outcomes_are_broadcast_once_and_few_are_left_to_the_plan(spark: SparkSession):
    """The records are the same; a shuffle stays in the plan, as it would run at once."""
    known = evidence([marker(ORDERS, FIRST), marker(ORDERS, SECOND, committed=False)])
    rows: list[tuple[int, list[Header] | None]] = [
        (offset, [(TXN, txn.to_bytes())]) for offset, txn in enumerate((FIRST, SECOND, FIRST))
    ]
    records, few = kafka_frame(spark, rows), decisions_of(spark, known, audited=False)
    for decisions, step in (
        (few, "BroadcastHashJoin"),
        (few._replace(outcome_count=ONCE_MIN), "Scan ExistingRDD"),
        (few._replace(outcome_count=ONCE_MIN, shuffled=True), "SortMergeJoin"),
    ):
        frame = committed_once(records, decisions)
        assert [row.offset for row in frame.sort("offset").collect()] == [0, 2]
        plan = plan_of(frame)
        assert step in plan
        assert ("Join" in plan) == ("Join" in step)


def test_more_outcomes_than_the_heap_holds_are_refused(spark: SparkSession):
    """Rows and heap decide: a broadcast, a shuffle, or an error that names both."""
    heap, _ = heaps(spark)
    assert not must_shuffle(spark, 1)
    beyond = int(heap * BROADCAST_SHARE / BROADCAST_ROW_BYTES) + 1
    assert must_shuffle(spark, beyond)
    told = f"99000000000 outcomes .* {heap / 2**20:.0f} MiB of heap"
    with pytest.raises(FatalError, match=told):
        must_shuffle(spark, 99_000_000_000)
