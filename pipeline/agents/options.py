"""The options of a worker's owners, as the settings have them."""

from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.position_snapshots import PositionSnapshotLimits
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.worker.deps import WorkerOptions


def worker_options(settings: Settings) -> WorkerOptions:
    """What the settings say of owners."""
    return WorkerOptions(
        cluster=settings.cluster,
        coordinators=settings.coordinators,
        partitions=settings.partitions,
        replicas=settings.replicas,
        txn_log=BatchLimits(
            records_max=settings.txn_log_batch_records_max,
            bytes_max=settings.txn_log_batch_bytes_max,
            delay_ms_max=settings.txn_log_batch_delay_ms_max,
            eager=settings.txn_log_flush_mode == "eager",
            batching=settings.txn_log_batching_enabled,
        ),
        pending_ack=BatchLimits(
            records_max=settings.pending_ack_batch_records_max,
            bytes_max=settings.pending_ack_batch_bytes_max,
            delay_ms_max=settings.pending_ack_batch_delay_ms_max,
            eager=settings.pending_ack_flush_mode == "eager",
            batching=settings.pending_ack_batching_enabled,
        ),
        client_limits=settings.client_limits,
        outcome_history=settings.outcome_history,
        snapshots=SnapshotLimits(
            settings.snapshot_changes_max,
            settings.snapshot_interval_ms,
            settings.snapshot_part_bytes_max,
            settings.marker_retention_ms,
        ),
        allow_compacted=settings.allow_compacted.split(),
        indexed_topics=settings.indexed_topics,
        clusters=sorted(settings.clusters),
        sync=SyncMode(settings.sync),
        position_snapshots=PositionSnapshotLimits(
            interval_ms=settings.replication_snapshot_interval_ms,
            timeout_ms=settings.replication_snapshot_timeout_ms,
            snapshots_max=settings.replication_snapshots_max,
        ),
    )
