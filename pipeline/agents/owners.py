"""What a worker owns: coordinators, stores, snapshot writers, indexers, replication controllers.

*Source*: system.md, Process shapes 1; protocols.md A7 (batching is switched while they serve).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import faust

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.groups import GroupConnector
from stilltide.connectors.ports.readers import BatchReader
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.agents.buffered_writer import BufferedWriter
from stilltide.pipeline.agents.partition_owner import PartitionOwnerAgent, PartitionOwners
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorDriver
from stilltide.pipeline.drivers.groups.controller import ControlledPartition
from stilltide.pipeline.drivers.groups.owner import Replicated, ReplicationDeps, ReplicationDriver
from stilltide.pipeline.drivers.native.owner import IndexDeps, IndexOwner
from stilltide.pipeline.drivers.pending_ack.owner import PendingAckDriver
from stilltide.pipeline.drivers.service.owner import OwnerDeps
from stilltide.pipeline.drivers.service.passed_over import PassedOver
from stilltide.pipeline.drivers.service.replies import Replies
from stilltide.pipeline.drivers.service.requests import AckRequests, CoordinatorRequests
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.snapshots.client import connect_snapshots
from stilltide.pipeline.drivers.snapshots.owner import SnapshotDriver
from stilltide.pipeline.drivers.snapshots.ownership import SnapshotDeps
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError
from stilltide.pipeline.metrics.groups import SubscriptionMetrics
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.settings import PENDING_ACK_BATCHING_ENABLED, TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.topics import ACK_REQUESTS, SNAPSHOT_REQUESTS, TXN_REQUESTS
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

SNAPSHOT_TIMEOUT_S = 10.0
"""For a snapshot to begin reading a data partition at; then the controllers begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeps:
    """What all owners of one worker use together.

    Attributes:
        connector: the cluster.
        batches: reads batches of data topics, for indexers.
        admin: of the cluster.
        writer: appends log entries, requests and answers.
        replies: takes answers.
        marker_writer: appends markers.
        ends: reads end offsets.
        acks: asks pending-ack stores.
        barriers: asks coordinators.
        buffered_writer: takes log entries.
        settings: of the worker.
        dynamic: settings that change while the worker runs.
        metrics: of the worker.
    """

    connector: GroupConnector
    batches: BatchReader
    admin: LogAdmin
    writer: LogWriter
    replies: Replies
    marker_writer: LogWriter
    ends: EndOffsets
    acks: AckRequests
    barriers: CoordinatorRequests
    buffered_writer: BufferedWriter
    settings: Settings
    dynamic: DynamicSettings
    metrics: WorkerMetrics


class Owners:
    """The agents of a worker, and the drivers they run.

    Args:
        app: the App on the cluster.
        shared: what the drivers use.
        failed: called with what an owner failed with; the worker cannot go on.
    """

    def __init__(
        self, app: faust.App, shared: WorkerDeps, failed: Callable[[BaseException], None]
    ) -> None:
        self._shared = shared
        self._owner_deps = _owner_deps(shared)
        self._snapshot_deps = _snapshot_deps(shared)
        undecodable = PassedOver("requests_passed_over", shared.metrics.undecodable_requests)
        self.coordinators = PartitionOwnerAgent(
            app, "coordinator", TXN_REQUESTS, self._coordinator, failed, undecodable=undecodable
        )
        self.pending_acks = PartitionOwnerAgent(
            app, "pending-ack", ACK_REQUESTS, self._pending_ack, failed, undecodable=undecodable
        )
        self.snapshots = PartitionOwnerAgent(
            app,
            "snapshots",
            SNAPSHOT_REQUESTS,
            self._snapshot_writer,
            failed,
            undecodable=undecodable,
        )
        shared.acks.neighbours = self.pending_acks.drivers
        shared.barriers.neighbours = self.coordinators.drivers
        self._owners: dict[str, PartitionOwners[Any]] = {
            "coordinators": self.coordinators,
            "pending-ack stores": self.pending_acks,
            "snapshot writers": self.snapshots,
        }
        if shared.settings.clusters:
            self._own_replication(app, failed)
        coordinators, stores, writers = self.coordinators, self.pending_acks, self.snapshots
        shared.metrics.watch_coordinators(
            lambda: {it: one.stats() for it, one in coordinators.drivers.items() if one.serving}
        )
        shared.metrics.watch_pending_acks(
            lambda: {it: one.stats() for it, one in stores.drivers.items() if one.serving}
        )
        shared.metrics.watch_snapshots(
            lambda: {it: one.stats() for it, one in writers.drivers.items() if one.serving}
        )
        if shared.settings.indexed_topics:
            self._own_index(app, failed)

    @property
    def serving(self) -> bool:
        """Whether coordinators are assigned, and everything that transactions wait for serves."""
        owners = [*self.coordinators.drivers.values(), *self.pending_acks.drivers.values()]
        return bool(self.coordinators.drivers) and all(owner.serving for owner in owners)

    def finding(self) -> ProbeResult:
        """Whether the group has assigned partitions, be it none, and those are recovered."""
        said: list[str] = []
        for name, agent in self._owners.items():
            if not agent.joined:
                return ProbeResult(passed=False, text="the group has assigned none yet")
            recovering = sorted(it for it, owner in agent.drivers.items() if not owner.serving)
            if recovering:
                return ProbeResult(passed=False, text=f"recovering {name}: {recovering}")
            said.append(f"{name}: {sorted(agent.drivers)}")
        return ProbeResult(passed=True, text=f"serving {', '.join(said)}")

    async def stop(self) -> None:
        """Stops every owner; what is in flight is not acknowledged."""
        await asyncio.gather(*(it.stop() for it in self._owners.values()))

    def settings_changed(self) -> None:
        """A dynamic setting has another value."""
        shared = self._shared
        for coordinator in self.coordinators.drivers.values():
            coordinator.limits_changed(_txn_log_limits(shared.settings, shared.dynamic))
        for store in self.pending_acks.drivers.values():
            store.limits_changed(_pending_ack_limits(shared.settings, shared.dynamic))

    def _coordinator(self, coordinator: int) -> CoordinatorDriver:
        shared = self._shared
        return CoordinatorDriver(
            coordinator,
            self._owner_deps,
            marker_writer=shared.marker_writer,
            ends=shared.ends,
            acks=shared.acks,
            limits=_txn_log_limits(shared.settings, shared.dynamic),
            partition_count=shared.settings.partitions,
            metrics=shared.metrics.coordinator(coordinator),
            txn_timeout_ms_max=shared.settings.txn_timeout_ms_max,
        )

    def _pending_ack(self, partition: int) -> PendingAckDriver:
        shared = self._shared
        return PendingAckDriver(
            partition,
            self._owner_deps,
            limits=_pending_ack_limits(shared.settings, shared.dynamic),
            metrics=shared.metrics.pending_ack(partition),
        )

    def _snapshot_writer(self, partition: int) -> SnapshotDriver:
        metrics = self._shared.metrics.snapshots(partition)
        return SnapshotDriver(partition, self._snapshot_deps, metrics=metrics)

    def _own_replication(self, app: faust.App, failed: Callable[[BaseException], None]) -> None:
        """Controls groups wherever the snapshots of the same partition are written.

        Data partitions are hashed to partitions as for snapshots: one worker has both.
        """
        shared = self._shared

        def served() -> dict[TopicPartition, ControlledPartition]:
            drivers = controllers.drivers.values()
            return {data: one for driver in drivers for data, one in driver.served.items()}

        metrics = SubscriptionMetrics(shared.settings.cluster, served, SystemClock())
        deps = replication_deps(shared, metrics)

        def controller(partition: int) -> ReplicationDriver:
            return ReplicationDriver(partition, deps)

        controllers = PartitionOwners(app, "replication", SNAPSHOT_REQUESTS, controller, failed)
        self._owners["replication controllers"] = controllers
        shared.metrics.registry.register(metrics)

    def _own_index(self, app: faust.App, failed: Callable[[BaseException], None]) -> None:
        """Indexes wherever the snapshots of the same partition are written.

        Nobody asks indexers, so they have no requests topic to be assigned by.
        """
        metrics, deps = self._shared.metrics, _index_deps(self._shared)

        def indexer(partition: int) -> IndexOwner:
            return IndexOwner(partition, deps, metrics=metrics.aborted_index(partition))

        indexers = PartitionOwners(app, "aborted-index", SNAPSHOT_REQUESTS, indexer, failed)
        self._owners["indexers"] = indexers
        metrics.watch_indexers(
            lambda: {it: one.stats() for it, one in indexers.drivers.items() if one.serving}
        )


def _txn_log_limits(settings: Settings, dynamic: DynamicSettings) -> BatchLimits:
    """Thresholds of the transaction log (A); a dynamic setting goes before a static one."""
    batching = dynamic.flag(TXN_LOG_BATCHING_ENABLED)
    return BatchLimits(
        records_max=settings.txn_log_batch_records_max,
        bytes_max=settings.txn_log_batch_bytes_max,
        delay_ms_max=settings.txn_log_batch_delay_ms_max,
        eager=settings.txn_log_flush_mode == "eager",
        batching=settings.txn_log_batching_enabled if batching is None else batching,
    )


def _pending_ack_limits(settings: Settings, dynamic: DynamicSettings) -> BatchLimits:
    """Thresholds of the pending-ack log, likewise."""
    batching = dynamic.flag(PENDING_ACK_BATCHING_ENABLED)
    return BatchLimits(
        records_max=settings.pending_ack_batch_records_max,
        bytes_max=settings.pending_ack_batch_bytes_max,
        delay_ms_max=settings.pending_ack_batch_delay_ms_max,
        eager=settings.pending_ack_flush_mode == "eager",
        batching=settings.pending_ack_batching_enabled if batching is None else batching,
    )


def _owner_deps(shared: WorkerDeps) -> OwnerDeps:
    """What coordinators and pending-ack stores use."""
    return OwnerDeps(
        connector=shared.connector,
        writer=shared.writer,
        replies=shared.replies,
        admin=shared.admin,
        submit=shared.buffered_writer.submit,
        foreign=PassedOver("log_entry_passed_over", shared.metrics.foreign_entries),
        clock=SystemClock(),
        broker_away_s_max=shared.settings.broker_away_s_max,
    )


def _snapshot_deps(shared: WorkerDeps) -> SnapshotDeps:
    """What snapshot writers use."""
    settings = shared.settings
    return SnapshotDeps(
        connector=shared.connector,
        admin=shared.admin,
        replies=shared.replies,
        coordinators=shared.barriers,
        clock=SystemClock(),
        limits=SnapshotLimits(
            settings.snapshot_changes_max,
            settings.snapshot_interval_ms,
            settings.snapshot_part_bytes_max,
        ),
        coordinator_count=settings.coordinators,
        partition_count=settings.partitions,
        broker_away_s_max=settings.broker_away_s_max,
    )


def _index_deps(shared: WorkerDeps) -> IndexDeps:
    """What indexers use."""
    return IndexDeps(
        connector=shared.connector,
        admin=shared.admin,
        batches=shared.batches,
        clock=SystemClock(),
        topics=shared.settings.indexed_topics,
        partition_count=shared.settings.partitions,
        limits=IndexLimits(),
    )


def replication_deps(shared: WorkerDeps, metrics: SubscriptionMetrics) -> ReplicationDeps:
    """What replication controllers use; `metrics` are told of each snapshot."""
    settings = shared.settings

    async def first(data: TopicPartition) -> Offset:
        """Everything below the max read position of a snapshot taken now is decided (E1)."""
        async with connect_snapshots(
            shared.connector, "replication", timeout_s=SNAPSHOT_TIMEOUT_S
        ) as line:
            try:
                return Offset((await line.take(data)).max_read_position)
            except (RequestTimeoutError, RefusedError) as error:
                raise RetriableError(f"no snapshot of {data}", detail=str(error)) from error

    here = ClusterName(settings.cluster)
    return ReplicationDeps(
        connector=shared.connector,
        admin=shared.admin,
        writer=shared.writer,
        clock=SystemClock(),
        here=here,
        remotes=[ClusterName(name) for name in sorted(settings.clusters) if name != here],
        replicated=Replicated(shared.dynamic.subscriptions),
        first=first,
        partition_count=settings.partitions,
        mode=SyncMode(settings.sync),
        snapshot_taken=metrics.snapshot_taken,
        broker_away_s_max=settings.broker_away_s_max,
    )
