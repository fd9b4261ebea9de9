"""Prometheus families of a worker, in a registry of its own.

*Source*: PIP-160, Metrics Changes. The three counters of flushes are one family with a label: each
flush has exactly one trigger, so the sum over the label is the number of entries, and shares are a
division. The PIP's twelve families thus are eight here.

*Invariants*: nothing is done for a record, and no label is looked up for an entry, except for
entries and requests that are passed over. Gauges are read from the owners at each scrape.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from stilltide.pipeline.core.buffered_log.accumulator import FlushTrigger, WriteEntry
from stilltide.pipeline.core.snapshots.stats import SnapshotStats
from stilltide.pipeline.metrics import native, snapshots
from stilltide.pipeline.metrics.families import (
    Family,
    Kind,
    OwnerCollector,
    Section,
    Table,
    counters,
    histograms,
)
from stilltide.pipeline.metrics.native import IndexFamilies, IndexMetrics, IndexStats
from stilltide.pipeline.metrics.snapshots import SnapshotFamilies, SnapshotMetrics
from stilltide.schemas.coordinator.transactions import CoordinatorStats
from stilltide.schemas.pending_ack.acknowledgements import StoreStats
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

_OF_COORDINATOR = ("cluster", "coordinator")
_OF_STORE = ("cluster", "partition")
_OF_TOPIC = ("cluster", "topic", "partition")


def _log_table(log: str, labels: tuple[str, str]) -> tuple[Family[Any], ...]:
    """The families of PIP-160 for one of its two users, counted by the buffered writer."""
    return (
        Family(
            f"stilltide_{log}_entry_records",
            Kind.HISTOGRAM,
            "records",
            labels,
            "Records of a log entry that left the buffer; entries of the trigger `unbatched` are "
            "not counted.",
            buckets=(1, 10, 50, 100, 200, 500, 1000),
        ),
        Family(
            f"stilltide_{log}_entry_size_bytes",
            Kind.HISTOGRAM,
            "bytes",
            labels,
            "Size of the value of a log entry that left the buffer, in bytes.",
            buckets=(128, 512, 1024, 2048, 4096, 16_384, 102_400, 1_048_576, 4_194_304),
        ),
        Family(
            f"stilltide_{log}_oldest_record_delay_seconds",
            Kind.HISTOGRAM,
            "seconds",
            labels,
            "How long the oldest record of a log entry was buffered, in seconds.",
            buckets=(0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
        ),
        Family(
            f"stilltide_{log}_flushes_total",
            Kind.COUNTER,
            "entries",
            (*labels, "trigger"),
            "Log entries, by what made them leave the buffer.",
            "`trigger` is `records`, `bytes` or `delay` (a threshold was met), `idle` (no write "
            "was in flight), `large` (a record of `bytes_max` or more followed), `close` (the log "
            "was closed, or its thresholds changed) or `unbatched` (an entry of one record that "
            "was not buffered: batching is off, or it is a record of `bytes_max` or more).",
        ),
    )


def _owner_table(owner: str, labels: tuple[str, str]) -> tuple[Family[Any], ...]:
    """The families of every owner of a log, counted as requests come and answers go."""
    return (
        Family(
            f"stilltide_{owner}_requests_total",
            Kind.COUNTER,
            "requests",
            labels,
            "Requests received, repeats included.",
        ),
        Family(
            f"stilltide_{owner}_answers_total",
            Kind.COUNTER,
            "answers",
            labels,
            "Answers sent, repeats included.",
        ),
        Family(
            f"stilltide_{owner}_fenced_total",
            Kind.COUNTER,
            "times",
            labels,
            "Times that another owner took the log over.",
        ),
        Family(
            f"stilltide_{owner}_appends_in_flight",
            Kind.GAUGE,
            "records",
            labels,
            "Log records appended and not read back.",
            read=lambda one: one.log.appends_in_flight,
        ),
        Family(
            f"stilltide_{owner}_recovery_seconds",
            Kind.GAUGE,
            "seconds",
            labels,
            "How long the ownership took to serve, in seconds.",
            read=lambda one: one.log.recovery_ms / 1000,
        ),
    )


COORDINATORS: tuple[Family[CoordinatorStats], ...] = (
    *_owner_table("coordinator", _OF_COORDINATOR),
    Family(
        "stilltide_coordinator_transactions",
        Kind.GAUGE,
        "transactions",
        (*_OF_COORDINATOR, "state"),
        "Transactions that have not ended.",
        "`state` is `open`, `committing` or `aborting`.",
        read=lambda one: {
            "open": one.open_count,
            "committing": one.committing_count,
            "aborting": one.aborting_count,
        },
    ),
    Family(
        "stilltide_coordinator_low_watermark_lag",
        Kind.GAUGE,
        "sequences",
        _OF_COORDINATOR,
        "Sequences from the oldest transaction that has not ended to the next one.",
        read=lambda one: one.next_sequence - one.low_watermark,
    ),
    Family(
        "stilltide_coordinator_markers_pending",
        Kind.GAUGE,
        "markers",
        _OF_COORDINATOR,
        "Outcome markers on their way.",
        read=lambda one: one.markers_pending,
    ),
    *_log_table("txn_log", _OF_COORDINATOR),
)

PENDING_ACKS: tuple[Family[StoreStats], ...] = (
    *_owner_table("pending_ack", _OF_STORE),
    Family(
        "stilltide_pending_ack_subscriptions",
        Kind.GAUGE,
        "subscriptions",
        _OF_STORE,
        "Subscriptions held in the log.",
        read=lambda one: one.subscription_count,
    ),
    Family(
        "stilltide_pending_ack_transactions",
        Kind.GAUGE,
        "transactions",
        _OF_STORE,
        "Transactions that have not ended and acknowledge something.",
        read=lambda one: one.transaction_count,
    ),
    Family(
        "stilltide_pending_ack_acknowledgements",
        Kind.GAUGE,
        "acknowledgements",
        (*_OF_STORE, "kind"),
        "Acknowledgements in transactions that have not ended.",
        "`kind` is `individual` or `cumulative`.",
        read=lambda one: {
            "individual": one.pending_individual,
            "cumulative": one.pending_cumulative,
        },
    ),
    *_log_table("pending_ack", _OF_STORE),
)

PASSED_OVER: Table = (
    Family(
        "stilltide_log_foreign_entries_total",
        Kind.COUNTER,
        "entries",
        _OF_TOPIC,
        "Entries of a log that no owner wrote, passed over.",
        "The logs are `stilltide.txn-log` and `stilltide.pending-ack-log`.",
    ),
    Family(
        "stilltide_foreign_records_total",
        Kind.COUNTER,
        "records",
        _OF_TOPIC,
        "Records of other system topics that cannot be decoded and change nothing, passed over.",
        "`stilltide.txn-markers` and `stilltide.txn-snapshots` have samples from the start, other "
        "topics once a record was passed over.",
    ),
    Family(
        "stilltide_request_records_undecodable_total",
        Kind.COUNTER,
        "records",
        _OF_TOPIC,
        "Records that are no requests, passed over.",
        "They are records of the request topics that this version cannot decode.",
    ),
)

SECTIONS = (
    Section(
        "Coordinators and their log",
        "`coordinator` is the number of the coordinator, which is its partition of "
        "`stilltide.txn-log`.",
        COORDINATORS,
    ),
    Section(
        "Pending-ack stores and their log",
        "`partition` is the partition of `stilltide.pending-ack-log`.",
        PENDING_ACKS,
    ),
    Section(
        "Records that are passed over",
        "`topic` and `partition` are those of the record.",
        PASSED_OVER,
    ),
)


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


class WorkerMetrics:
    """Every family of one worker.

    Args:
        cluster: value of the label on each sample.
        registry: where they are registered.
    """

    def __init__(self, cluster: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._cluster = cluster
        self._coordinators = _OwnerFamilies(COORDINATORS, "coordinator", "txn_log", registry)
        self._pending_acks = _OwnerFamilies(PENDING_ACKS, "pending_ack", "pending_ack", registry)
        self._snapshots = SnapshotFamilies(registry)
        self._index = IndexFamilies(registry)
        passed_over = counters(PASSED_OVER, registry)
        self._foreign = passed_over["stilltide_log_foreign_entries_total"]
        self._foreign_records = passed_over["stilltide_foreign_records_total"]
        self._undecodable = passed_over["stilltide_request_records_undecodable_total"]
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)

    def coordinator(self, coordinator: int) -> OwnerMetrics:
        """Of one coordinator; the counts go on when a coordinator comes back."""
        self.foreign_entries(TopicPartition(TXN_LOG, coordinator))
        self.undecodable_requests(TopicPartition(TXN_REQUESTS, coordinator))
        return self._coordinators.of(self._cluster, coordinator)

    def pending_ack(self, partition: int) -> OwnerMetrics:
        """Of one pending-ack store; the counts go on when a store comes back."""
        self.foreign_entries(TopicPartition(PENDING_ACK_LOG, partition))
        self.undecodable_requests(TopicPartition(ACK_REQUESTS, partition))
        return self._pending_acks.of(self._cluster, partition)

    def snapshots(self, partition: int) -> SnapshotMetrics:
        """Of one snapshot writer; the counts go on when a writer comes back."""
        self.undecodable_requests(TopicPartition(SNAPSHOT_REQUESTS, partition))
        for topic in (TXN_MARKERS, TXN_SNAPSHOTS):
            self.foreign_records(TopicPartition(topic, partition))
        return self._snapshots.of(self._cluster, partition)

    def aborted_index(self, partition: int) -> IndexMetrics:
        """Of one indexer of native transactions; the counts go on when an indexer comes back."""
        return self._index.of(self._cluster, partition)

    def foreign_entries(self, log: TopicPartition) -> Counter:
        """Of one log: entries that are passed over (B6)."""
        return self._foreign.labels(self._cluster, log.topic, str(log.partition))

    def foreign_records(self, data: TopicPartition) -> Counter:
        """Of one partition of another system topic: records that are passed over (B10)."""
        return self._foreign_records.labels(self._cluster, data.topic, str(data.partition))

    def undecodable_requests(self, requests: TopicPartition) -> Counter:
        """Of one partition of a topic of requests: records that are passed over (C10)."""
        return self._undecodable.labels(self._cluster, requests.topic, str(requests.partition))

    def watch_coordinators(self, stats: Callable[[], Mapping[int, CoordinatorStats]]) -> None:
        """Shows the figures of the coordinators that serve; each scrape calls `stats`."""
        self.registry.register(OwnerCollector(COORDINATORS, self._cluster, stats))

    def watch_pending_acks(self, stats: Callable[[], Mapping[int, StoreStats]]) -> None:
        """Shows the figures of the pending-ack stores that serve."""
        self.registry.register(OwnerCollector(PENDING_ACKS, self._cluster, stats))

    def watch_snapshots(self, stats: Callable[[], Mapping[int, SnapshotStats]]) -> None:
        """Shows the figures of the snapshot writers that serve."""
        self.registry.register(OwnerCollector(snapshots.TABLE, self._cluster, stats))

    def watch_indexers(self, stats: Callable[[], Mapping[int, IndexStats]]) -> None:
        """Shows the figures of the indexers that serve."""
        self.registry.register(OwnerCollector(native.TABLE, self._cluster, stats))


class _OwnerFamilies:
    """The counters and histograms of all owners of one kind, and of their logs.

    Args:
        table: the families.
        owner: how the names of the owner's families begin, after the product's name.
        log: how the names of the log's families begin.
        registry: where they are registered.
    """

    def __init__(self, table: Table, owner: str, log: str, registry: CollectorRegistry) -> None:
        made = counters(table, registry)
        self._requests = made[f"stilltide_{owner}_requests_total"]
        self._answers = made[f"stilltide_{owner}_answers_total"]
        self._fenced = made[f"stilltide_{owner}_fenced_total"]
        self._flushes = made[f"stilltide_{log}_flushes_total"]
        measured = histograms(table, registry)
        self._records = measured[f"stilltide_{log}_entry_records"]
        self._size_bytes = measured[f"stilltide_{log}_entry_size_bytes"]
        self._delay_s = measured[f"stilltide_{log}_oldest_record_delay_seconds"]

    def of(self, cluster: str, number: int) -> OwnerMetrics:
        """Those of one owner."""
        labels = (cluster, str(number))
        log = LogMetrics(
            self._records.labels(*labels),
            self._size_bytes.labels(*labels),
            self._delay_s.labels(*labels),
            {one: self._flushes.labels(*labels, one.value) for one in FlushTrigger},
        )
        return OwnerMetrics(
            log,
            self._requests.labels(*labels),
            self._answers.labels(*labels),
            self._fenced.labels(*labels),
        )
