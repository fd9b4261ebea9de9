"""What a worker counts and measures, as Prometheus families in a registry of its own.

*Source*: PIP-160 (seed 003), Metrics Changes; facts, pulsar.md 2.3. The PIP's three counters of
flushes are one family with a label: each flush has exactly one trigger, so the sum over the label
is the number of entries, and shares are a division. Its twelve families thus are eight here.

Each sample has the label `cluster`. `coordinator` and `partition` are numbers.

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
| stilltide_txn_log_entry_records | histogram | records | coordinator | records of an entry |
| stilltide_txn_log_entry_size_bytes | histogram | bytes | coordinator | an entry's value |
| stilltide_txn_log_oldest_record_delay_seconds | histogram | seconds | coordinator | how long the \
oldest record of an entry was buffered |
| stilltide_txn_log_flushes_total | counter | entries | coordinator, trigger | entries, by what \
made them leave |
| stilltide_pending_ack_entry_records | histogram | records | partition | as of the txn log |
| stilltide_pending_ack_entry_size_bytes | histogram | bytes | partition | as of the txn log |
| stilltide_pending_ack_oldest_record_delay_seconds | histogram | seconds | partition | as of the \
txn log |
| stilltide_pending_ack_flushes_total | counter | entries | partition, trigger | as of the txn log |
| stilltide_log_foreign_entries_total | counter | entries | partition, topic | of txn-log and \
pending-ack-log, passed over: written by nobody who was the owner (B6) |
| stilltide_request_records_undecodable_total | counter | records | partition, topic | of the \
topics of requests, passed over: no requests that this program knows (C10) |
| stilltide_coordinator_requests_total | counter | requests | coordinator | received, repeats \
included |
| stilltide_coordinator_answers_total | counter | answers | coordinator | sent, repeats included |
| stilltide_coordinator_fenced_total | counter | times | coordinator | another owner took the log \
over |
| stilltide_coordinator_transactions | gauge | transactions | coordinator, state | not ended: \
open, committing or aborting |
| stilltide_coordinator_low_watermark_lag | gauge | sequences | coordinator | from the oldest \
transaction that has not ended to the next sequence |
| stilltide_coordinator_appends_in_flight | gauge | records | coordinator | appended and not read \
back |
| stilltide_coordinator_markers_pending | gauge | markers | coordinator | outcomes on their way |
| stilltide_coordinator_recovery_seconds | gauge | seconds | coordinator | how long the ownership \
took to serve |
| stilltide_pending_ack_requests_total | counter | requests | partition | as of a coordinator |
| stilltide_pending_ack_answers_total | counter | answers | partition | as of a coordinator |
| stilltide_pending_ack_fenced_total | counter | times | partition | as of a coordinator |
| stilltide_pending_ack_subscriptions | gauge | subscriptions | partition | held in the log |
| stilltide_pending_ack_transactions | gauge | transactions | partition | not ended, with \
something pending |
| stilltide_pending_ack_acknowledgements | gauge | acknowledgements | kind, partition | pending: \
individual offsets, or cumulative ones |
| stilltide_pending_ack_appends_in_flight | gauge | records | partition | as of a coordinator |
| stilltide_pending_ack_recovery_seconds | gauge | seconds | partition | as of a coordinator |
| stilltide_snapshot_requests_total | counter | requests | partition | for a snapshot, repeats \
included |
| stilltide_snapshot_answers_total | counter | answers | partition | sent, repeats included |
| stilltide_snapshot_fenced_total | counter | times | partition | another writer took over |
| stilltide_snapshot_failed_total | counter | times | partition | a write failed, or nobody \
knows; the writer began again |
| stilltide_snapshot_taken_total | counter | snapshots | partition | written, of one data \
partition each |
| stilltide_snapshot_parts_total | counter | parts | partition | sealed parts written |
| stilltide_snapshot_written_bytes_total | counter | bytes | partition | keys and values of \
what was written |
| stilltide_snapshot_write_seconds | histogram | seconds | partition | how long a native \
transaction of snapshots took |
| stilltide_snapshot_recovery_seconds | gauge | seconds | partition | as of a coordinator |
| stilltide_snapshot_data_partitions | gauge | partitions | partition | known to the writer |
| stilltide_snapshot_aborted_transactions | gauge | transactions | partition | held by the writer, \
over all data partitions |
| stilltide_snapshot_max_read_position_lag | gauge | offsets | partition | from max read position \
to end of the data partition, the largest of the last probe |
| stilltide_snapshot_requests_held | gauge | requests | partition | wait for their snapshot |
| stilltide_snapshot_markers_read_offset | gauge | offset | partition | every marker below \
was read |
| stilltide_snapshot_markers_trimmed_offset | gauge | offset | partition | up to where the writer \
has trimmed the markers, 0 if it has not |
| stilltide_aborted_index_fenced_total | counter | times | partition | another indexer of native \
transactions took over |
| stilltide_aborted_index_failed_total | counter | times | partition | the indexer began again \
after an error |
| stilltide_aborted_index_data_partitions | gauge | partitions | partition, state | indexed, or \
resting because they cannot be |
| stilltide_aborted_index_ranges | gauge | ranges | partition | of aborted batches |
| stilltide_aborted_index_lag | gauge | offsets | partition | from what is indexed to the last \
stable offset of a data partition, the largest |

`trigger` is `records`, `bytes` or `delay` (a threshold was met), `idle` (no write was under way),
`large` (a record of `bytes_max` or more), `unbatched` (batching is off) or `close` (the log was
closed, or its thresholds changed). Beside these are prometheus_client's own of the process.

*Invariants*: nothing is done for a record, and no label is looked up for an entry, but for those
that are passed over. Gauges are read
from the owners when they are asked for, so one that moved away leaves none behind.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stilltide.pipeline.core.buffered_log.accumulator import FlushTrigger, WriteEntry
from stilltide.pipeline.core.snapshots.stats import SnapshotStats
from stilltide.pipeline.metrics.native import IndexFamilies, IndexMetrics, IndexStats
from stilltide.pipeline.metrics.snapshots import SnapshotFamilies, SnapshotMetrics
from stilltide.schemas.coordinator.transactions import CoordinatorStats
from stilltide.schemas.pending_ack.acknowledgements import StoreStats
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    PENDING_ACK_LOG,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_REQUESTS,
)
from stilltide.schemas.values import TopicPartition

RECORDS_BUCKETS = (1, 10, 50, 100, 200, 500, 1000)
SIZE_BUCKETS_BYTES = (128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576, 4_194_304)
DELAY_BUCKETS_S = (0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0)


class LogMetrics:
    """What the buffered writer of one log does; resolved once for each log."""

    def __init__(self, families: "_LogFamilies", cluster: str, number: int) -> None:
        labels = (cluster, str(number))
        self._records = families.records.labels(*labels)
        self._size_bytes = families.size_bytes.labels(*labels)
        self._delay_s = families.delay_s.labels(*labels)
        self._flushes = {
            trigger: families.flushes.labels(*labels, trigger.value) for trigger in FlushTrigger
        }

    def entry_written(self, entry: WriteEntry, size_bytes: int) -> None:
        """One entry is on its way; its value has `size_bytes`."""
        self._records.observe(len(entry.records))
        self._size_bytes.observe(size_bytes)
        self._delay_s.observe(entry.waited_ms / 1000)
        self._flushes[entry.trigger].inc()


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


class WorkerMetrics:
    """Every family of one worker.

    Args:
        cluster: value of the label on each sample.
        registry: where they are registered.
    """

    def __init__(self, cluster: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._cluster = cluster
        self._coordinator = _OwnerFamilies("txn_log", "coordinator", "coordinator", registry)
        self._pending_ack = _OwnerFamilies("pending_ack", "pending_ack", "partition", registry)
        self._snapshots = SnapshotFamilies(registry)
        self._index = IndexFamilies(registry)
        self._foreign, self._undecodable = (
            Counter(f"stilltide_{name}", text, ("cluster", "topic", "partition"), registry=registry)
            for name, text in (
                ("log_foreign_entries", "Entries of a log that no owner wrote, passed over."),
                ("request_records_undecodable", "Records that are no requests, passed over."),
            )
        )
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def coordinator(self, coordinator: int) -> OwnerMetrics:
        """Of one coordinator; asked for again, the counts go on."""
        self.foreign_entries(TopicPartition(TXN_LOG, coordinator))
        self.undecodable_requests(TopicPartition(TXN_REQUESTS, coordinator))
        return self._coordinator.of(self._cluster, coordinator)

    def pending_ack(self, partition: int) -> OwnerMetrics:
        """Of one pending-ack store, likewise."""
        self.foreign_entries(TopicPartition(PENDING_ACK_LOG, partition))
        self.undecodable_requests(TopicPartition(ACK_REQUESTS, partition))
        return self._pending_ack.of(self._cluster, partition)

    def snapshots(self, partition: int) -> SnapshotMetrics:
        """Of one snapshot writer, likewise."""
        self.undecodable_requests(TopicPartition(SNAPSHOT_REQUESTS, partition))
        return self._snapshots.of(self._cluster, partition)

    def aborted_index(self, partition: int) -> IndexMetrics:
        """Of one indexer of native transactions, likewise."""
        return self._index.of(self._cluster, partition)

    def foreign_entries(self, log: TopicPartition) -> Counter:
        """Of one log: entries that are passed over (B6)."""
        return self._foreign.labels(self._cluster, log.topic, str(log.partition))

    def undecodable_requests(self, requests: TopicPartition) -> Counter:
        """Of one partition of a topic of requests: records that are passed over (C10)."""
        return self._undecodable.labels(self._cluster, requests.topic, str(requests.partition))

    def watch_coordinators(self, stats: Callable[[], Mapping[int, CoordinatorStats]]) -> None:
        """Shows the figures of those that serve, read by `stats` whenever they are asked for."""
        self.registry.register(_Gauges(self._cluster, "coordinator", _OF_COORDINATORS, stats))

    def watch_pending_acks(self, stats: Callable[[], Mapping[int, StoreStats]]) -> None:
        """Shows the figures of the pending-ack stores that serve, likewise."""
        self.registry.register(_Gauges(self._cluster, "partition", _OF_STORES, stats))

    def watch_snapshots(self, stats: Callable[[], Mapping[int, SnapshotStats]]) -> None:
        """Shows the figures of the snapshot writers that serve, likewise."""
        self.registry.register(_Gauges(self._cluster, "partition", _OF_SNAPSHOTS, stats))

    def watch_indexers(self, stats: Callable[[], Mapping[int, IndexStats]]) -> None:
        """Shows the figures of the indexers that serve, likewise."""
        self.registry.register(_Gauges(self._cluster, "partition", _OF_INDEXERS, stats))


class _OwnerFamilies:
    """What is counted of the owners of one topic's logs."""

    def __init__(self, user: str, owner: str, number: str, registry: CollectorRegistry) -> None:
        self._log = _LogFamilies(user, number, registry)
        self._requests, self._answers, self._fenced = (
            Counter(f"stilltide_{owner}_{name}", text, ("cluster", number), registry=registry)
            for name, text in (
                ("requests", "Requests received, repeats included."),
                ("answers", "Answers sent, repeats included."),
                ("fenced", "Times that another owner took the log over."),
            )
        )

    def of(self, cluster: str, number: int) -> OwnerMetrics:
        """Of one owner."""
        labels = (cluster, str(number))
        return OwnerMetrics(
            LogMetrics(self._log, cluster, number),
            self._requests.labels(*labels),
            self._answers.labels(*labels),
            self._fenced.labels(*labels),
        )


class _LogFamilies:
    """The families of PIP-160 for one of its two users."""

    def __init__(self, user: str, number: str, registry: CollectorRegistry) -> None:
        labels = ("cluster", number)
        prefix = f"stilltide_{user}"
        self.records = Histogram(
            f"{prefix}_entry_records",
            "Records of a log entry.",
            labels,
            buckets=RECORDS_BUCKETS,
            registry=registry,
        )
        self.size_bytes = Histogram(
            f"{prefix}_entry_size_bytes",
            "Size of a log entry's value, in bytes.",
            labels,
            buckets=SIZE_BUCKETS_BYTES,
            registry=registry,
        )
        self.delay_s = Histogram(
            f"{prefix}_oldest_record_delay_seconds",
            "How long the oldest record of a log entry was buffered, in seconds.",
            labels,
            buckets=DELAY_BUCKETS_S,
            registry=registry,
        )
        self.flushes = Counter(
            f"{prefix}_flushes",
            "Log entries, by what made them leave the buffer.",
            (*labels, "trigger"),
            registry=registry,
        )


S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class _Gauge(Generic[S]):
    """A family whose samples are read from an owner's figures.

    Attributes:
        name: without the prefix that all have.
        text: what it means.
        values: the sample, or one for each value of `label`.
        label: beside the cluster and the owner's number.
    """

    name: str
    text: str
    values: Callable[[S], float | Mapping[str, float]]
    label: str | None = None


class _Gauges(Collector, Generic[S]):
    """Gauges of the owners that serve, read when they are asked for."""

    def __init__(
        self,
        cluster: str,
        number: str,
        gauges: Iterable[_Gauge[S]],
        stats: Callable[[], Mapping[int, S]],
    ) -> None:
        self._cluster = cluster
        self._number = number
        self._gauges = gauges
        self._stats = stats

    def collect(self) -> Iterable[Metric]:
        """The families, with the samples of each owner."""
        stats = self._stats()
        for gauge in self._gauges:
            labels = ["cluster", self._number, *([gauge.label] if gauge.label else [])]
            family = GaugeMetricFamily(f"stilltide_{gauge.name}", gauge.text, labels=labels)
            for number, one in stats.items():
                values = gauge.values(one)
                if not isinstance(values, Mapping):
                    family.add_metric((self._cluster, str(number)), values)
                    continue
                for value, sample in values.items():
                    family.add_metric((self._cluster, str(number), value), sample)
            yield family


_IN_FLIGHT = "Log records appended and not read back."
_RECOVERY = "How long the ownership took to serve, in seconds."

_OF_COORDINATORS: tuple[_Gauge[CoordinatorStats], ...] = (
    _Gauge(
        "coordinator_transactions",
        "Transactions that have not ended.",
        lambda one: {
            "open": one.open_count,
            "committing": one.committing_count,
            "aborting": one.aborting_count,
        },
        "state",
    ),
    _Gauge(
        "coordinator_low_watermark_lag",
        "Sequences from the oldest transaction that has not ended to the next one.",
        lambda one: one.next_sequence - one.low_watermark,
    ),
    _Gauge("coordinator_appends_in_flight", _IN_FLIGHT, lambda one: one.log.appends_in_flight),
    _Gauge(
        "coordinator_markers_pending",
        "Outcome markers on their way.",
        lambda one: one.markers_pending,
    ),
    _Gauge("coordinator_recovery_seconds", _RECOVERY, lambda one: one.log.recovery_ms / 1000),
)

_OF_STORES: tuple[_Gauge[StoreStats], ...] = (
    _Gauge(
        "pending_ack_subscriptions",
        "Subscriptions held in the log.",
        lambda one: one.subscription_count,
    ),
    _Gauge(
        "pending_ack_transactions",
        "Transactions that have not ended and acknowledge something.",
        lambda one: one.transaction_count,
    ),
    _Gauge(
        "pending_ack_acknowledgements",
        "Acknowledgements in transactions that have not ended.",
        lambda one: {
            "individual": one.pending_individual,
            "cumulative": one.pending_cumulative,
        },
        "kind",
    ),
    _Gauge("pending_ack_appends_in_flight", _IN_FLIGHT, lambda one: one.log.appends_in_flight),
    _Gauge("pending_ack_recovery_seconds", _RECOVERY, lambda one: one.log.recovery_ms / 1000),
)

_OF_SNAPSHOTS: tuple[_Gauge[SnapshotStats], ...] = (
    _Gauge(
        "snapshot_data_partitions",
        "Data partitions known to the snapshot writer.",
        lambda one: one.data_partitions,
    ),
    _Gauge(
        "snapshot_aborted_transactions",
        "Aborted transactions held by the snapshot writer.",
        lambda one: one.aborted_count,
    ),
    _Gauge(
        "snapshot_max_read_position_lag",
        "Offsets from max read position to end of a data partition; largest of the last probe.",
        lambda one: one.max_read_position_lag,
    ),
    _Gauge(
        "snapshot_requests_held",
        "Requests that wait for their snapshot.",
        lambda one: one.requests_held,
    ),
    _Gauge(
        "snapshot_markers_read_offset",
        "Every marker below it was read.",
        lambda one: one.markers_read_to,
    ),
    _Gauge(
        "snapshot_markers_trimmed_offset",
        "Up to where the snapshot writer has trimmed the markers.",
        lambda one: one.markers_trimmed_to,
    ),
    _Gauge("snapshot_recovery_seconds", _RECOVERY, lambda one: one.recovery_ms / 1000),
)

_OF_INDEXERS: tuple[_Gauge[IndexStats], ...] = (
    _Gauge(
        "aborted_index_data_partitions",
        "Data partitions of the indexer.",
        lambda one: {"indexed": one.data_partitions, "resting": one.resting},
        "state",
    ),
    _Gauge("aborted_index_ranges", "Ranges of aborted batches.", lambda one: one.range_count),
    _Gauge(
        "aborted_index_lag",
        "Offsets from what is indexed to the last stable offset; the largest.",
        lambda one: one.lag,
    ),
)
