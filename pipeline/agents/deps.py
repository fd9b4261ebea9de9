"""The dependencies that the owners of a worker share, and those of each kind of owner.

*Source*: docs/protocols A7 (batching is switched while owners serve).
"""

from collections.abc import Callable
from dataclasses import dataclass

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.connectors.ports.readers import BatchReader
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.agents.buffered_writer import BufferedWriter
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.position_snapshots import PositionSnapshotLimits
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets
from stilltide.pipeline.drivers.groups.owner import GroupsOwnerDeps, Replicated
from stilltide.pipeline.drivers.native.owner import IndexDeps
from stilltide.pipeline.drivers.service.kinds.pending_ack import AckRequests
from stilltide.pipeline.drivers.service.lines.server import LineServer
from stilltide.pipeline.drivers.service.owner import OwnerDeps
from stilltide.pipeline.drivers.service.replies import Replies
from stilltide.pipeline.drivers.service.requests import CoordinatorRequests
from stilltide.pipeline.drivers.service.watches.watched_writer import WatchedWriter
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.drivers.snapshots.client import connect_snapshots
from stilltide.pipeline.drivers.snapshots.ownership import SnapshotDeps
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError
from stilltide.pipeline.metrics.groups import GroupMetrics
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.coordinator.transactions import CompactedTopic, ReportedEnd
from stilltide.schemas.settings import PENDING_ACK_BATCHING_ENABLED, TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

SNAPSHOT_TIMEOUT_S = 10.0
"""How long a controller waits for the snapshot from which it begins reading, before it retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeps:
    """The dependencies that all owners of one worker share.

    Attributes:
        connector: connector of the cluster.
        batches: reader of batches of data topics, for indexers.
        admin: admin client of the cluster.
        writer: writer of log entries, requests and answers; has what hinders the worker (C17).
        replies: sender of answers.
        marker_writer: writer of markers.
        ends: reader of end offsets.
        acks: client of pending-ack stores.
        barriers: client of coordinators.
        buffered_writer: queue of log entries.
        settings: settings of the worker.
        dynamic: settings that change while the worker runs.
        metrics: metrics of the worker.
        lines: direct lines of clients (J).
        ended_owners: the owners and links of the worker that an error has ended (B8).
    """

    connector: GroupConnector
    batches: BatchReader
    admin: LogAdmin
    writer: WatchedWriter
    replies: Replies
    marker_writer: LogWriter
    ends: EndOffsets
    acks: AckRequests
    barriers: CoordinatorRequests
    buffered_writer: BufferedWriter
    settings: Settings
    dynamic: DynamicSettings
    metrics: WorkerMetrics
    lines: LineServer
    ended_owners: Callable[[], tuple[ReportedEnd, ...]] = tuple


def txn_log_limits(settings: Settings, dynamic: DynamicSettings) -> BatchLimits:
    """Thresholds of the transaction log (A); a dynamic setting overrides a static one."""
    batching = dynamic.flag(TXN_LOG_BATCHING_ENABLED)
    return BatchLimits(
        records_max=settings.txn_log_batch_records_max,
        bytes_max=settings.txn_log_batch_bytes_max,
        delay_ms_max=settings.txn_log_batch_delay_ms_max,
        eager=settings.txn_log_flush_mode == "eager",
        batching=settings.txn_log_batching_enabled if batching is None else batching,
    )


def pending_ack_limits(settings: Settings, dynamic: DynamicSettings) -> BatchLimits:
    """Thresholds of the pending-ack log (A); a dynamic setting overrides a static one."""
    batching = dynamic.flag(PENDING_ACK_BATCHING_ENABLED)
    return BatchLimits(
        records_max=settings.pending_ack_batch_records_max,
        bytes_max=settings.pending_ack_batch_bytes_max,
        delay_ms_max=settings.pending_ack_batch_delay_ms_max,
        eager=settings.pending_ack_flush_mode == "eager",
        batching=settings.pending_ack_batching_enabled if batching is None else batching,
    )


def owner_deps(
    worker: WorkerDeps, compacted_topics: Callable[[], tuple[CompactedTopic, ...]]
) -> OwnerDeps:
    """The dependencies of coordinators and pending-ack stores."""
    return OwnerDeps(
        connector=worker.connector,
        writer=worker.writer,
        replies=worker.replies,
        admin=worker.admin,
        submit=worker.buffered_writer.submit,
        foreign=PassedOver("log_entry_passed_over", worker.metrics.foreign_entries),
        clock=worker.connector.clock,
        reply_partitions=worker.settings.partitions,
        lines=worker.lines,
        ended_owners=worker.ended_owners,
        hindrances=worker.writer.hindrances,
        compacted_topics=compacted_topics,
    )


def snapshot_deps(worker: WorkerDeps) -> SnapshotDeps:
    """The dependencies of snapshot writers."""
    settings = worker.settings
    return SnapshotDeps(
        connector=worker.connector,
        admin=worker.admin,
        replies=worker.replies,
        coordinators=worker.barriers,
        clock=worker.connector.clock,
        limits=SnapshotLimits(
            settings.snapshot_changes_max,
            settings.snapshot_interval_ms,
            settings.snapshot_part_bytes_max,
            settings.marker_retention_ms,
        ),
        partition_count=settings.partitions,
        hindrances=worker.writer.hindrances,
    )


def index_deps(worker: WorkerDeps) -> IndexDeps:
    """The dependencies of indexers."""
    return IndexDeps(
        connector=worker.connector,
        admin=worker.admin,
        batches=worker.batches,
        clock=worker.connector.clock,
        topics=worker.settings.indexed_topics,
        partition_count=worker.settings.partitions,
        limits=IndexLimits(),
        hindrances=worker.writer.hindrances,
    )


def replication_deps(worker: WorkerDeps, metrics: GroupMetrics) -> GroupsOwnerDeps:
    """The dependencies of replication controllers; `metrics` count each position snapshot."""
    settings = worker.settings

    async def first(data: TopicPartition) -> Offset:
        """Everything below the max read position of a snapshot taken now is decided (E1)."""
        async with connect_snapshots(
            worker.connector, "replication", timeout_s=SNAPSHOT_TIMEOUT_S
        ) as snapshots:
            try:
                return Offset((await snapshots.take(data)).max_read_position)
            except (RequestTimeoutError, RefusedError) as error:
                raise RetriableError(f"no snapshot of {data}", detail=str(error)) from error

    here, clock = ClusterName(settings.cluster), worker.connector.clock
    return GroupsOwnerDeps(
        connector=worker.connector,
        admin=worker.admin,
        writer=worker.writer,
        replies=worker.replies,
        clock=clock,
        here=here,
        remotes=[ClusterName(name) for name in sorted(settings.clusters) if name != here],
        replicated=Replicated(worker.dynamic.subscriptions, clock),
        first=first,
        partition_count=settings.partitions,
        mode=SyncMode(settings.sync),
        snapshot_limits=PositionSnapshotLimits(
            interval_ms=settings.replication_snapshot_interval_ms,
            timeout_ms=settings.replication_snapshot_timeout_ms,
            snapshots_max=settings.replication_snapshots_max,
        ),
        snapshot_taken=metrics.snapshot_taken,
    )
