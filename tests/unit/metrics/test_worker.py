"""Families of a worker: what is counted as entries are written, and read from its owners."""

import pytest
from prometheus_client import CollectorRegistry

from stilltide.pipeline.core.buffered_log.accumulator import (
    Accumulator,
    BatchLimits,
    FlushTrigger,
    WriteEntry,
)
from stilltide.pipeline.core.snapshots.effects import SnapshotStats
from stilltide.pipeline.metrics.families import sections
from stilltide.pipeline.metrics.worker import IndexStats, WorkerMetrics
from stilltide.schemas.snapshots.snapshots import STAR_KEY, end_key, part_key
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.schemas.wire import STATS
from tests.support.schemas.wire_acks import STORE_STATS

LOG = {"cluster": "a", "coordinator": "2"}
SNAPSHOT_STATS = SnapshotStats(
    data_partitions=2,
    aborted_count=3,
    max_read_position_lag=4,
    requests_held=5,
    markers_read_to=Offset(7),
    markers_trimmed_to=Offset(6),
    recovery_ms=8,
)
STORE = {"cluster": "a", "partition": "1"}


@pytest.fixture
def metrics() -> WorkerMetrics:
    """Of a worker of cluster `a`, with one owner of each kind that serves."""
    made = WorkerMetrics("a", CollectorRegistry())
    made.coordinator(2)
    made.pending_ack(1)
    made.snapshots(1)
    made.aborted_index(1)
    made.watch_coordinators(lambda: {2: STATS})
    made.watch_pending_acks(lambda: {1: STORE_STATS})
    made.watch_snapshots(lambda: {1: SNAPSHOT_STATS})
    made.watch_indexers(lambda: {1: IndexStats(3, 1, 7, 5)})
    return made


def value(metrics: WorkerMetrics, name: str, **labels: str) -> float | None:
    """One sample of coordinator 2."""
    return metrics.registry.get_sample_value(f"stilltide_{name}", {**LOG, **labels})


@pytest.mark.parametrize(
    ("waited_ms", "least_s"), [(0.4, 0.0005), (1.0, 0.001), (4.0, 0.005), (9.0, 0.01), (40.0, 0.05)]
)
def test_delays_of_milliseconds_are_told_apart(
    metrics: WorkerMetrics, waited_ms: float, least_s: float
):
    """A delay falls into the bucket of its own size: 1, 5 and 10 ms are separate ones."""
    entry = WriteEntry(1, [b"x"], FlushTrigger.DELAY, waited_ms)
    metrics.coordinator(2).log.entry_written(entry, 1)
    name = "txn_log_oldest_record_delay_seconds_bucket"
    table = {family.name: family for family in sections()["coordinators"].table}
    buckets = table["stilltide_txn_log_oldest_record_delay_seconds"].buckets
    assert next(it for it in buckets if value(metrics, name, le=str(it))) == least_s


def test_an_entry_is_counted_in_each_family(metrics: WorkerMetrics):
    """Records, size, delay and trigger of an entry; asked for again, the counts go on."""
    for trigger, count in ((FlushTrigger.IDLE, 3), (FlushTrigger.RECORDS, 512)):
        entry = WriteEntry(1, [b"x"] * count, trigger, 2.0)
        metrics.coordinator(2).log.entry_written(entry, 4 * count)
    assert value(metrics, "txn_log_entry_records_sum") == 515
    assert value(metrics, "txn_log_entry_records_bucket", le="10.0") == 1
    assert value(metrics, "txn_log_entry_size_bytes_sum") == 4 * 515
    assert value(metrics, "txn_log_oldest_record_delay_seconds_sum") == pytest.approx(0.004)
    flushes = {
        it.value: value(metrics, "txn_log_flushes_total", trigger=it.value) for it in FlushTrigger
    }
    assert flushes.pop("idle") == flushes.pop("records") == 1
    assert set(flushes.values()) == {0}


def test_histograms_count_only_what_left_the_buffer(metrics: WorkerMetrics):
    """PIP-160: a large record and an entry without batching are entries, and in no histogram."""
    written = Accumulator(BatchLimits(bytes_max=10, eager=False))
    entries = [*written.append(b"1", 0), *written.append(bytes(10), 2), *written.append(b"2", 2)]
    entries += written.limits_changed(BatchLimits(batching=False), 3)
    entries += written.append(b"3", 3)
    for entry in entries:
        metrics.coordinator(2).log.entry_written(entry, sum(map(len, entry.records)))
    flushes = {
        it.value: value(metrics, "txn_log_flushes_total", trigger=it.value) for it in FlushTrigger
    }
    assert {name: count for name, count in flushes.items() if count} == {
        "large": 1, "close": 1, "unbatched": 2,
    }  # fmt: skip
    for name in ("entry_records", "entry_size_bytes", "oldest_record_delay_seconds"):
        assert value(metrics, f"txn_log_{name}_count") == 2
    assert value(metrics, "txn_log_entry_size_bytes_sum") == 2


def test_gauges_show_what_coordinators_say(metrics: WorkerMetrics):
    """They are read when they are asked for, in base units."""
    assert value(metrics, "coordinator_transactions", state="open") == STATS.open_count
    assert value(metrics, "coordinator_low_watermark_lag") == -1
    assert value(metrics, "coordinator_recovery_seconds") == 0.017


def test_gauges_show_what_pending_ack_stores_say(metrics: WorkerMetrics):
    """Figures of stores have the number of their partition."""

    def stored(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"stilltide_pending_ack_{name}", {**STORE, **labels}
        )

    assert stored("subscriptions") == STORE_STATS.subscription_count
    assert stored("transactions") == STORE_STATS.transaction_count
    assert stored("acknowledgements", kind="individual") == STORE_STATS.pending_individual
    assert stored("acknowledgements", kind="cumulative") == STORE_STATS.pending_cumulative
    assert stored("appends_in_flight") == STORE_STATS.log.appends_in_flight
    assert stored("recovery_seconds") == 0.016


def test_a_coordinator_that_moved_away_leaves_no_gauge():
    """Two workers never show the same coordinator as theirs for longer than a scrape."""
    stats = {2: STATS}
    metrics = WorkerMetrics("a", CollectorRegistry())
    metrics.watch_coordinators(lambda: stats)
    assert value(metrics, "coordinator_markers_pending") == STATS.markers_pending
    stats.clear()
    assert value(metrics, "coordinator_markers_pending") is None


def test_what_a_snapshot_wrote_is_counted(metrics: WorkerMetrics):
    """Ends and parts that were written, not tombstones; bytes and seconds of all of it."""
    data = TopicPartition("orders", 0)
    records = [
        (part_key(data, 1), b"12345"),
        (end_key(data), b"123"),
        (part_key(data, 2), None),
        (STAR_KEY, b"1"),
    ]
    metrics.snapshots(1).written(records, 0.02)
    get = metrics.registry.get_sample_value
    assert get("stilltide_snapshot_taken_total", STORE) == 1
    assert get("stilltide_snapshot_parts_total", STORE) == 1
    size = sum(len(key) + len(value or b"") for key, value in records)
    assert get("stilltide_snapshot_written_bytes_total", STORE) == size
    assert get("stilltide_snapshot_write_seconds_sum", STORE) == 0.02
    assert get("stilltide_snapshot_requests_held", STORE) == 5
