from collections.abc import Sequence

import pytest
from pyspark.sql import SparkSession

from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.outcomes import decisions_of, mixed_transactions
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.snapshots.snapshots import AbortedIds, Floors, SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId

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
