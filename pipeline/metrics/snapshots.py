"""What snapshot writers count; `pipeline.metrics.worker` says what each family means.

*Source*: protocols.md E.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from stilltide.pipeline.core.snapshots.sealed import SnapshotRecord
from stilltide.schemas.snapshots.snapshots import EndKey, PartKey, decode_key

WRITE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class SnapshotMetrics:
    """What the snapshot writer of one marker partition counts.

    Attributes:
        requests: received, repeats included.
        answers: sent, likewise.
        fenced: how often another writer took over.
        failed: how often a write failed, or nobody knows.
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
    """What is counted of snapshot writers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("cluster", "partition")
        self._counters = {
            name: Counter(f"stilltide_snapshot_{name}", text, labels, registry=registry)
            for name, text in (
                ("requests", "Requests for a snapshot, repeats included."),
                ("answers", "Answers sent, repeats included."),
                ("fenced", "Times that another snapshot writer took over."),
                ("failed", "Times that a write failed, or nobody knows."),
                ("taken", "Snapshots written, of one data partition each."),
                ("parts", "Sealed parts written."),
                ("written_bytes", "Bytes of keys and values written."),
            )
        }
        self._write_s = Histogram(
            "stilltide_snapshot_write_seconds",
            "How long a native transaction of snapshots took, in seconds.",
            labels,
            buckets=WRITE_BUCKETS_S,
            registry=registry,
        )

    def of(self, cluster: str, partition: int) -> SnapshotMetrics:
        """Of one snapshot writer."""
        labels = (cluster, str(partition))
        counters = {name: one.labels(*labels) for name, one in self._counters.items()}
        return SnapshotMetrics(**counters, write_s=self._write_s.labels(*labels))
