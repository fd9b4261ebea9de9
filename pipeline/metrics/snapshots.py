"""Prometheus families of the writers of snapshots.

*Source*: docs/protocols/e-snapshots.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from stilltide.pipeline.core.snapshots.sealed import SnapshotRecord
from stilltide.pipeline.core.snapshots.stats import SnapshotStats
from stilltide.pipeline.metrics.families import Family, Kind, Section, counters, histograms
from stilltide.schemas.snapshots.snapshots import EndKey, PartKey, decode_key

_LABELS = ("cluster", "partition")

TABLE: tuple[Family[SnapshotStats], ...] = (
    Family(
        "stilltide_snapshot_requests_total",
        Kind.COUNTER,
        "requests",
        _LABELS,
        "Requests for a snapshot, repeats included.",
    ),
    Family(
        "stilltide_snapshot_answers_total",
        Kind.COUNTER,
        "answers",
        _LABELS,
        "Answers sent, repeats included.",
    ),
    Family(
        "stilltide_snapshot_fenced_total",
        Kind.COUNTER,
        "times",
        _LABELS,
        "Times that another snapshot writer took over.",
    ),
    Family(
        "stilltide_snapshot_failed_total",
        Kind.COUNTER,
        "times",
        _LABELS,
        "Times that a write failed, or nobody knows.",
        "The snapshot writer begins again after each.",
    ),
    Family(
        "stilltide_snapshot_taken_total",
        Kind.COUNTER,
        "snapshots",
        _LABELS,
        "Snapshots written, of one data partition each.",
    ),
    Family(
        "stilltide_snapshot_parts_total",
        Kind.COUNTER,
        "parts",
        _LABELS,
        "Sealed parts written.",
    ),
    Family(
        "stilltide_snapshot_written_bytes_total",
        Kind.COUNTER,
        "bytes",
        _LABELS,
        "Bytes of keys and values written.",
    ),
    Family(
        "stilltide_snapshot_write_seconds",
        Kind.HISTOGRAM,
        "seconds",
        _LABELS,
        "How long a native transaction of snapshots took, in seconds.",
        buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    ),
    Family(
        "stilltide_snapshot_data_partitions",
        Kind.GAUGE,
        "partitions",
        _LABELS,
        "Data partitions known to the snapshot writer.",
        read=lambda one: one.data_partitions,
    ),
    Family(
        "stilltide_snapshot_aborted_transactions",
        Kind.GAUGE,
        "transactions",
        _LABELS,
        "Aborted transactions held by the snapshot writer.",
        "The sum over all data partitions.",
        read=lambda one: one.aborted_count,
    ),
    Family(
        "stilltide_snapshot_max_read_position_lag",
        Kind.GAUGE,
        "offsets",
        _LABELS,
        "Offsets from max read position to end of a data partition; largest of the last probe.",
        read=lambda one: one.max_read_position_lag,
    ),
    Family(
        "stilltide_snapshot_requests_held",
        Kind.GAUGE,
        "requests",
        _LABELS,
        "Requests that wait for their snapshot.",
        read=lambda one: one.requests_held,
    ),
    Family(
        "stilltide_snapshot_markers_read_offset",
        Kind.GAUGE,
        "offsets",
        _LABELS,
        "Every marker below it was read.",
        read=lambda one: one.markers_read_to,
    ),
    Family(
        "stilltide_snapshot_markers_trimmed_offset",
        Kind.GAUGE,
        "offsets",
        _LABELS,
        "Up to where the snapshot writer has trimmed the markers.",
        "0 if it has not trimmed any.",
        read=lambda one: one.markers_trimmed_to,
    ),
    Family(
        "stilltide_snapshot_recovery_seconds",
        Kind.GAUGE,
        "seconds",
        _LABELS,
        "How long the ownership took to serve, in seconds.",
        read=lambda one: one.recovery_ms / 1000,
    ),
)

SECTION = Section(
    "Snapshot writers",
    "`partition` is the partition of `stilltide.txn-markers` whose outcomes the writer absorbs.",
    TABLE,
)


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """What the snapshot writer of one marker partition counts.

    Attributes:
        requests: received, repeats included.
        answers: sent, repeats included.
        fenced: how often another writer took over.
        failed: how often a write failed, or its outcome is unknown.
        taken: snapshots written, of one data partition each; with them `parts`.
        written_bytes: of keys and values.
        write_s: how long their native transactions took.
    """

    requests: Counter
    answers: Counter
    fenced: Counter
    failed: Counter
    taken: Counter
    parts: Counter
    written_bytes: Counter
    write_s: Histogram

    def written(self, records: Sequence[SnapshotRecord], seconds: float) -> None:
        """One native transaction is durable."""
        named = [type(decode_key(key)) for key, value in records if value is not None]
        self.taken.inc(named.count(EndKey))
        self.parts.inc(named.count(PartKey))
        self.written_bytes.inc(sum(len(key) + len(value or b"") for key, value in records))
        self.write_s.observe(seconds)


class SnapshotFamilies:
    """The counters and histograms of all snapshot writers of a worker."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = counters(TABLE, registry)
        self._write_s = histograms(TABLE, registry)["stilltide_snapshot_write_seconds"]

    def of(self, cluster: str, partition: int) -> SnapshotMetrics:
        """Those of one snapshot writer."""
        labels = (cluster, str(partition))

        def counter(name: str) -> Counter:
            return self._counters[f"stilltide_snapshot_{name}_total"].labels(*labels)

        return SnapshotMetrics(
            requests=counter("requests"),
            answers=counter("answers"),
            fenced=counter("fenced"),
            failed=counter("failed"),
            taken=counter("taken"),
            parts=counter("parts"),
            written_bytes=counter("written_bytes"),
            write_s=self._write_s.labels(*labels),
        )
