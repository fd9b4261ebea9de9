"""Prometheus families of a worker, in a registry of its own.

*Source*: PIP-160, Metrics Changes. The three counters of flushes are one family with a label: each
flush has exactly one trigger, so the sum over the label is the number of entries, and shares are a
division. The PIP's twelve families thus are eight here.

*Invariants*: nothing is done for a record, and no label is looked up for an entry, except for
entries and requests that are passed over. Gauges are read from the owners at each scrape.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from stilltide.pipeline.core.buffered_log.accumulator import FlushTrigger, WriteEntry
from stilltide.pipeline.core.snapshots.aborted import SnapshotRecord
from stilltide.pipeline.core.snapshots.effects import SnapshotStats
from stilltide.pipeline.metrics.families import OwnerCollector, counters, histograms, sections
from stilltide.schemas.coordinator.transactions import CoordinatorStats
from stilltide.schemas.pending_ack.acknowledgements import StoreStats
from stilltide.schemas.snapshots.snapshots import EndKey, PartKey, decode_key
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    PENDING_ACK_LOG,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import TopicPartition

_COUNTED = ("coordinators", "pending_acks", "passed_over", "snapshots", "native")
"""Sections with families that a worker counts as it goes."""


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """What the buffered writer of one log does, with its labels resolved."""

    _records: Histogram
    _size_bytes: Histogram
    _delay_s: Histogram
    _flushes: Mapping[FlushTrigger, Counter]

    def entry_written(self, entry: WriteEntry, size_bytes: int) -> None:
        """One entry is on its way; its value has `size_bytes`."""
        self._flushes[entry.trigger].inc()
        if entry.trigger.of_buffer:  # PIP-160's histograms are about what batching does
            self._records.observe(len(entry.records))
            self._size_bytes.observe(size_bytes)
            self._delay_s.observe(entry.waited_ms / 1000)


@dataclass(frozen=True, slots=True)
class OwnerMetrics:
    """What the owner of one log counts.

    Attributes:
        log: of its buffered writer.
        requests: received.
        answers: sent.
        fenced: how often another owner took its log over.
    """

    log: LogMetrics
    requests: Counter
    answers: Counter
    fenced: Counter


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


class IndexStats(NamedTuple):
    """Figures of one partition of aborted-index, over the data partitions that belong there.

    Attributes:
        data_partitions: how many are indexed.
        resting: how many cannot be, for now.
        range_count: of aborted batches, written or not.
        lag: offsets from what is indexed to the last stable offset, the largest.
    """

    data_partitions: int = 0
    resting: int = 0
    range_count: int = 0
    lag: int = 0


@dataclass(frozen=True, slots=True)
class IndexMetrics:
    """What the indexer of one partition of aborted-index counts.

    Attributes:
        fenced: how often another indexer took over.
        failed: how often it began again after an error.
    """

    fenced: Counter
    failed: Counter


class WorkerMetrics:
    """Every family of one worker.

    Args:
        cluster: value of the label on each sample.
        registry: where they are registered.
    """

    def __init__(self, cluster: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._cluster = cluster
        rows = [row for name in _COUNTED for row in sections()[name].table]
        self._counters, self._histograms = counters(rows, registry), histograms(rows, registry)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def coordinator(self, coordinator: int) -> OwnerMetrics:
        """Of one coordinator; the counts go on when a coordinator comes back."""
        self.foreign_entries(TopicPartition(TXN_LOG, coordinator))
        self.undecodable_requests(TopicPartition(TXN_REQUESTS, coordinator))
        return self._owner("coordinator", "txn_log", coordinator)

    def pending_ack(self, partition: int) -> OwnerMetrics:
        """Of one pending-ack store; the counts go on when a store comes back."""
        self.foreign_entries(TopicPartition(PENDING_ACK_LOG, partition))
        self.undecodable_requests(TopicPartition(ACK_REQUESTS, partition))
        return self._owner("pending_ack", "pending_ack", partition)

    def snapshots(self, partition: int) -> SnapshotMetrics:
        """Of one snapshot writer; the counts go on when a writer comes back."""
        self.undecodable_requests(TopicPartition(SNAPSHOT_REQUESTS, partition))
        for topic in (TXN_MARKERS, TXN_SNAPSHOTS):
            self.foreign_records(TopicPartition(topic, partition))
        labels = (self._cluster, str(partition))
        counted = {
            name: self._counters[f"stilltide_snapshot_{name}_total"].labels(*labels)
            for name in SnapshotMetrics.__dataclass_fields__
            if name != "write_s"
        }
        write_s = self._histograms["stilltide_snapshot_write_seconds"].labels(*labels)
        return SnapshotMetrics(**counted, write_s=write_s)

    def aborted_index(self, partition: int) -> IndexMetrics:
        """Of one indexer of native transactions; the counts go on when an indexer comes back."""
        fenced, failed = (
            self._counters[f"stilltide_aborted_index_{name}_total"].labels(
                self._cluster, str(partition)
            )
            for name in ("fenced", "failed")
        )
        return IndexMetrics(fenced, failed)

    def foreign_entries(self, log: TopicPartition) -> Counter:
        """Of one log: entries that are passed over (B6)."""
        return self._passed_over("log_foreign_entries", log)

    def foreign_records(self, data: TopicPartition) -> Counter:
        """Of one partition of another system topic: records that are passed over (B10)."""
        return self._passed_over("foreign_records", data)

    def undecodable_requests(self, requests: TopicPartition) -> Counter:
        """Of one partition of a topic of requests: records that are passed over (C10)."""
        return self._passed_over("request_records_undecodable", requests)

    def watch_coordinators(self, stats: Callable[[], Mapping[int, CoordinatorStats]]) -> None:
        """Shows the figures of the coordinators that serve; each scrape calls `stats`."""
        self._watch("coordinators", stats)

    def watch_pending_acks(self, stats: Callable[[], Mapping[int, StoreStats]]) -> None:
        """Shows the figures of the pending-ack stores that serve."""
        self._watch("pending_acks", stats)

    def watch_snapshots(self, stats: Callable[[], Mapping[int, SnapshotStats]]) -> None:
        """Shows the figures of the snapshot writers that serve."""
        self._watch("snapshots", stats)

    def watch_indexers(self, stats: Callable[[], Mapping[int, IndexStats]]) -> None:
        """Shows the figures of the indexers that serve."""
        self._watch("native", stats)

    def _watch(self, section: str, stats: Callable[[], Mapping[int, object]]) -> None:
        table = sections()[section].table
        self.registry.register(OwnerCollector(table, self._cluster, stats))

    def _passed_over(self, name: str, data: TopicPartition) -> Counter:
        labels = (self._cluster, data.topic, str(data.partition))
        return self._counters[f"stilltide_{name}_total"].labels(*labels)

    def _owner(self, owner: str, log: str, number: int) -> OwnerMetrics:
        """Those of one owner; its families' names begin with `owner`, its log's with `log`."""
        labels = (self._cluster, str(number))
        records, size_bytes, delay_s = (
            self._histograms[f"stilltide_{log}_{name}"].labels(*labels)
            for name in ("entry_records", "entry_size_bytes", "oldest_record_delay_seconds")
        )
        requests, answers, fenced = (
            self._counters[f"stilltide_{owner}_{name}_total"].labels(*labels)
            for name in ("requests", "answers", "fenced")
        )
        of_log = self._counters[f"stilltide_{log}_flushes_total"]
        flushes = {trigger: of_log.labels(*labels, trigger.value) for trigger in FlushTrigger}
        log_metrics = LogMetrics(records, size_bytes, delay_s, flushes)
        return OwnerMetrics(log_metrics, requests, answers, fenced)
