"""What the owners of a worker share: opened together, run together, closed together.

*Source*: docs/protocols A7 (batching is switched while owners serve), B9, C17.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupConnector
from stilltide.connectors.ports.readers import BatchReader
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.coordinator.admission import ClientLimits
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.core.groups.controller import SyncMode
from stilltide.pipeline.core.groups.position_snapshots import PositionSnapshotLimits
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import EntryWriter
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.drivers.groups.controller import GroupsOwnerDeps, Replicated
from stilltide.pipeline.drivers.pending_ack.client import PENDING_ACK_OPERATOR_SERVICE
from stilltide.pipeline.drivers.service.ask.requests import (
    COORDINATOR_OPERATOR_SERVICE,
    AckRequests,
    CoordinatorRequests,
    Requests,
    Service,
)
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.drivers.service.own.owner import OwnerDeps
from stilltide.pipeline.drivers.service.own.replies import Replies
from stilltide.pipeline.drivers.service.own.watched_writer import WatchedWriter
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.errors import RefusedError, RequestTimeoutError
from stilltide.pipeline.metrics.groups import GroupMetrics
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.coordinator.transactions import CompactedTopic, ReportedEnd
from stilltide.schemas.settings import PENDING_ACK_BATCHING_ENABLED, TXN_LOG_BATCHING_ENABLED
from stilltide.schemas.topics import system_topics
from stilltide.schemas.values import ClusterName, Offset, TopicPartition

SNAPSHOT_TIMEOUT_S = 10.0
"""How long a controller waits for the snapshot from which it begins reading, before it retries."""

MARKER_LINGER_MS = 5.0
"""Longer than for answers: few clients wait for markers, and large batches spare the broker."""

B = TypeVar("B")
A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What a worker's owners do; see the settings of the same names.

    Attributes:
        cluster: name of the cluster.
        coordinators: number of coordinators.
        partitions: number of partitions of each other system topic.
        replicas: replicas of the system topics.
        txn_log, pending_ack: thresholds of the buffered writers, unless a dynamic setting says
            otherwise (A7).
        client_limits: what clients may hold (C16).
        outcome_history: how many outcomes each coordinator remembers (C12).
        snapshots: times of snapshots and sizes of parts.
        allow_compacted: topics that may compact (C18).
        indexed_topics: topics whose native transactions are indexed; none: there are no indexers.
        clusters: names of all clusters; none: there are no controllers of groups.
        sync: way in which positions of groups are carried over (I12).
        position_snapshots: times and sizes of position snapshots.
        ask_timeout_s: time after which coordinators and snapshot writers ask an owner again, which
            may be away for long.
    """

    cluster: str
    coordinators: int
    partitions: int
    client_limits: ClientLimits
    replicas: WantedReplicas = AUTOMATIC
    txn_log: BatchLimits = field(default_factory=BatchLimits)
    pending_ack: BatchLimits = field(default_factory=BatchLimits)
    outcome_history: int = OUTCOME_HISTORY
    snapshots: SnapshotLimits = field(default_factory=SnapshotLimits)
    allow_compacted: Sequence[str] = ()
    indexed_topics: Sequence[str] = ()
    clusters: Sequence[str] = ()
    sync: SyncMode = SyncMode.EXACT
    position_snapshots: PositionSnapshotLimits = field(default_factory=PositionSnapshotLimits)
    ask_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDeps:
    """The dependencies that all owners of one worker share; `open_deps` makes them.

    Attributes:
        connector: connector of the cluster.
        batches: reader of batches of data topics, for indexers; None: there are none.
        admin: admin client of the cluster.
        writer: writer of log entries, requests and answers; has what hinders the worker (C17).
        replies: sender of answers.
        marker_writer: writer of markers.
        ends: reader of end offsets.
        acks: client of pending-ack stores.
        barriers: client of coordinators.
        entries: writer of log entries.
        options: what the owners do.
        dynamic: settings that change while the worker runs.
        metrics: metrics of the worker.
        lines: direct lines of clients (J).
        ended_owners: the owners and links of the worker that an error has ended (B8).
    """

    connector: GroupConnector
    batches: BatchReader | None = None
    admin: LogAdmin
    writer: WatchedWriter
    replies: Replies
    marker_writer: WatchedWriter
    ends: EndOffsets
    acks: AckRequests
    barriers: CoordinatorRequests
    entries: EntryWriter
    options: WorkerOptions
    dynamic: DynamicSettings
    metrics: WorkerMetrics
    lines: LineServer
    ended_owners: Callable[[], tuple[ReportedEnd, ...]] = tuple

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs while the owners do, by name."""
        return {
            "end-offsets": self.ends.run(),
            "settling": self.acks.failed(),
            "barriers": self.barriers.failed(),
            "buffered-writer": self.entries.run(),
        }

    async def close(self, flush_s: float = 5.0) -> None:
        """Closes what `open_deps` opened, after the owners have stopped."""
        await asyncio.gather(self.acks.close(), self.barriers.close())
        await asyncio.gather(self.writer.close(flush_s), self.marker_writer.close(flush_s))


async def make_topics(admin: LogAdmin, outages: OutageGuard, options: WorkerOptions) -> None:
    """Makes the system topics, or adds coordinators (C14)."""
    specs = system_topics(coordinators=options.coordinators, partitions=options.partitions)
    await outages.call(grow_coordinators, admin, options.coordinators)
    await outages.call(ensure_replicated, admin, specs, options.replicas)


async def open_deps(
    connector: GroupConnector,
    admin: LogAdmin,
    options: WorkerOptions,
    *,
    entries: EntryWriter,
    dynamic: DynamicSettings,
    metrics: WorkerMetrics,
    hindrances: Hindrances,
    lines: LineServer,
    batches: BatchReader | None = None,
    ended_owners: Callable[[], tuple[ReportedEnd, ...]] = tuple,
) -> WorkerDeps:
    """Opens what the owners of a worker share; waits for a cluster that is away."""
    writer = WatchedWriter(connector.writer("worker"), hindrances)
    markers = connector.writer("worker-markers", linger_ms=MARKER_LINGER_MS)

    def asking(service: Service[B, A]) -> Requests[B, A]:
        timeout_s = options.ask_timeout_s
        return Requests(service, connector, writer, name="worker", request_timeout_s=timeout_s)

    acks, barriers = asking(PENDING_ACK_OPERATOR_SERVICE), asking(COORDINATOR_OPERATOR_SERVICE)
    outages, partitions = OutageGuard(admin), options.partitions
    await outages.call(acks.open, partition_count=partitions, response_partition_count=partitions)
    await outages.call(
        barriers.open, partition_count=options.coordinators, response_partition_count=partitions
    )
    return WorkerDeps(
        connector=connector,
        batches=batches,
        admin=admin,
        writer=writer,
        replies=Replies(writer, [acks, barriers], lines, partitions),
        marker_writer=WatchedWriter(markers, hindrances),
        ends=EndOffsets(admin, hindrances),
        acks=acks,
        barriers=barriers,
        entries=entries,
        options=options,
        dynamic=dynamic,
        metrics=metrics,
        lines=lines,
        ended_owners=ended_owners,
    )


def txn_log_limits(deps: WorkerDeps) -> BatchLimits:
    """Thresholds of the transaction log (A); a dynamic setting overrides a static one."""
    return _with(deps.options.txn_log, deps.dynamic.flag(TXN_LOG_BATCHING_ENABLED))


def pending_ack_limits(deps: WorkerDeps) -> BatchLimits:
    """Thresholds of the pending-ack log (A); a dynamic setting overrides a static one."""
    return _with(deps.options.pending_ack, deps.dynamic.flag(PENDING_ACK_BATCHING_ENABLED))


def _with(limits: BatchLimits, batching: bool | None) -> BatchLimits:  # noqa: FBT001 - a setting
    return limits if batching is None else replace(limits, batching=batching)


def owner_deps(
    worker: WorkerDeps, compacted_topics: Callable[[], tuple[CompactedTopic, ...]]
) -> OwnerDeps:
    """The dependencies that all kinds of owners share."""
    return OwnerDeps(
        connector=worker.connector,
        writer=worker.writer,
        replies=worker.replies,
        admin=worker.admin,
        entries=worker.entries,
        foreign=PassedOver("log_entry_passed_over", worker.metrics.foreign_entries),
        clock=worker.connector.clock,
        partition_count=worker.options.partitions,
        lines=worker.lines,
        ended_owners=worker.ended_owners,
        hindrances=worker.writer.hindrances,
        compacted_topics=compacted_topics,
    )


def replication_deps(worker: WorkerDeps, metrics: GroupMetrics) -> GroupsOwnerDeps:
    """The dependencies of replication controllers; `metrics` count each position snapshot."""
    options = worker.options

    async def first(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """Everything below the max read position of a snapshot taken now is decided (E1)."""
        async with SnapshotLine(
            worker.connector, "replication", timeout_s=SNAPSHOT_TIMEOUT_S
        ) as snapshots:
            try:
                taken = await asyncio.gather(*map(snapshots.take, partitions))
            except (RequestTimeoutError, RefusedError) as error:
                raise RetriableError(error.primary, detail=str(error)) from error
        positions = [Offset(it.max_read_position) for it in taken]
        return dict(zip(partitions, positions, strict=True))

    here = ClusterName(options.cluster)
    return GroupsOwnerDeps(
        connector=worker.connector,
        admin=worker.admin,
        writer=worker.writer,
        replies=worker.replies,
        here=here,
        remotes=[ClusterName(name) for name in sorted(options.clusters) if name != here],
        replicated=Replicated(worker.dynamic.subscriptions, worker.connector.clock),
        first=first,
        partition_count=options.partitions,
        mode=options.sync,
        snapshot_limits=options.position_snapshots,
        snapshot_taken=metrics.snapshot_taken,
    )
