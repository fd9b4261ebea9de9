"""A worker's owners: coordinators, stores, snapshot writers, indexers, replication controllers.

*Source*: docs/protocols A7 (batching is switched while owners serve).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import faust

from stilltide.connectors.clock import SystemClock
from stilltide.pipeline.agents import placement
from stilltide.pipeline.agents.deps import (
    WorkerDeps,
    index_deps,
    owner_deps,
    pending_ack_limits,
    replication_deps,
    snapshot_deps,
    txn_log_limits,
)
from stilltide.pipeline.agents.partition_owner import PartitionOwnerAgent, PartitionOwners
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.drivers.coordinator.compacted_topics import CompactedTopics
from stilltide.pipeline.drivers.coordinator.known_topics import KnownTopics
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorDriver, Shares
from stilltide.pipeline.drivers.groups.owner import GroupsOwner
from stilltide.pipeline.drivers.native.owner import IndexOwner
from stilltide.pipeline.drivers.pending_ack.owner import PendingAckDriver
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.drivers.snapshots.owner import SnapshotDriver
from stilltide.pipeline.metrics.groups import ControllerStats, GroupMetrics
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import TopicPartition


class Owners:
    """The agents of a worker, and the drivers they run.

    Args:
        app: the App on the cluster.
        deps: the dependencies of the drivers.
        failed: called with an error when no owner is left that could serve; the worker has to stop.
    """

    def __init__(
        self, app: faust.App, deps: WorkerDeps, failed: Callable[[BaseException], None]
    ) -> None:
        self._deps = deps
        self._failed = failed
        allowed = deps.settings.allow_compacted.split()
        self.compacted = CompactedTopics(deps.admin, SystemClock(), self._data_topics, allowed)
        self._owner_deps = owner_deps(deps, self.compacted.report)
        self._snapshot_deps = snapshot_deps(deps)
        self._known_topics = KnownTopics(deps.admin)
        self._groups = deps.connector.group_admin()
        undecodable = PassedOver("requests_passed_over", deps.metrics.undecodable_requests)
        self.coordinators = PartitionOwnerAgent(
            app, placement.COORDINATORS, self._coordinator, self._ended, undecodable=undecodable
        )
        self.pending_acks = PartitionOwnerAgent(
            app,
            placement.PENDING_ACK_STORES,
            self._pending_ack,
            self._ended,
            undecodable=undecodable,
        )
        self.snapshots = PartitionOwnerAgent(
            app,
            placement.SNAPSHOT_WRITERS,
            self._snapshot_writer,
            self._ended,
            undecodable=undecodable,
        )
        deps.acks.ways.neighbours = self.pending_acks.drivers
        deps.barriers.ways.neighbours = self.coordinators.drivers
        deps.acks.ways.reached = deps.barriers.ways.reached = deps.writer.reached
        deps.lines.owners[TXN_LOG] = self.coordinators.drivers
        self._owners: list[PartitionOwners[Any]] = [
            self.coordinators,
            self.pending_acks,
            self.snapshots,
        ]
        if deps.settings.clusters:
            self._own_replication(app, undecodable)
        self._watch_metrics(deps)
        if deps.settings.indexed_topics:
            self._own_index(app)

    def _watch_metrics(self, deps: WorkerDeps) -> None:
        """Has the metrics ask the owners that serve."""
        coordinators, stores, writers = self.coordinators, self.pending_acks, self.snapshots
        deps.metrics.watch_coordinators(
            lambda: {it: one.stats() for it, one in coordinators.drivers.items() if one.serving}
        )
        deps.metrics.watch_pending_acks(
            lambda: {it: one.stats() for it, one in stores.drivers.items() if one.serving}
        )
        deps.metrics.watch_snapshots(
            lambda: {it: one.stats() for it, one in writers.drivers.items() if one.serving}
        )

    @property
    def serving(self) -> bool:
        """Whether coordinators are assigned, and they and all pending-ack stores serve."""
        owners = [*self.coordinators.drivers.values(), *self.pending_acks.drivers.values()]
        ended = [*self.coordinators.ends, *self.pending_acks.ends]
        serving = sum(owner.serving for owner in owners)
        return bool(self.coordinators.drivers) and serving + len(ended) == len(owners)

    @property
    def ends(self) -> Mapping[str, Mapping[str, OwnerEnd]]:
        """The owners that have ended by an error, by kind, and by number or name."""
        return {it.placement.name: it.ends for it in self._owners}

    def finding(self) -> ProbeResult:
        """Whether the group has assigned partitions, or none, and all of them are recovered.

        An owner that has ended by an error is named with its cause (B8).
        """
        said: list[str] = []
        now_s = asyncio.get_running_loop().time()
        ended = [
            f"{it.placement.name} {number} has ended: {end.text(now_s)}"
            for it in self._owners
            for number, end in it.ends.items()
        ]
        if ended:
            return ProbeResult(passed=False, text="; ".join(ended))
        for agent in self._owners:
            name = agent.placement.title
            if not agent.joined:
                return ProbeResult(passed=False, text="the group has assigned none yet")
            recovering = sorted(it for it, owner in agent.drivers.items() if not owner.serving)
            if recovering:
                return ProbeResult(passed=False, text=f"recovering {name}: {recovering}")
            said.append(f"{name}: {sorted(agent.drivers)}")
        return ProbeResult(passed=True, text=f"serving {', '.join(said)}")

    async def look_up_topics(self) -> None:
        """Looks up the topics of registrations, and what has begun to compact, until cancelled."""
        await asyncio.gather(self._known_topics.run(), self.compacted.run())

    def _data_topics(self) -> set[str] | None:
        """The topics with records of coordinated transactions; None while an owner recovers."""
        if not self.finding().passed:
            return None
        return set[str]().union(*(it.data_topics for it in self.snapshots.drivers.values()))

    async def stop(self) -> None:
        """Stops every owner; requests in flight are not answered."""
        await asyncio.gather(*(it.stop() for it in self._owners))
        await self._groups.close()

    def try_again(self) -> None:
        """Tries the owners that have ended again; an outage that ended them is over (B8)."""
        for owners in self._owners:
            owners.try_again()

    async def follow_settings(self) -> None:
        """Passes changed dynamic settings on to the owners, until cancelled."""
        deps = self._deps
        async for _ in deps.dynamic.changes():
            for coordinator in self.coordinators.drivers.values():
                coordinator.limits_changed(txn_log_limits(deps.settings, deps.dynamic))
            for store in self.pending_acks.drivers.values():
                store.limits_changed(pending_ack_limits(deps.settings, deps.dynamic))

    def _ended(self) -> None:
        """An owner has ended; the worker ends only if nothing is left to be asked (B8)."""
        asked = [it for it in (self.coordinators, self.pending_acks, self.snapshots) if it.drivers]
        if asked and all(it.all_ended for it in asked):
            self._failed(next(iter(asked[0].ends.values())).error)

    def _coordinator(self, coordinator: int) -> CoordinatorDriver:
        deps = self._deps
        return CoordinatorDriver(
            coordinator,
            self._owner_deps,
            marker_writer=deps.marker_writer,
            ends=deps.ends,
            acks=deps.acks,
            limits=txn_log_limits(deps.settings, deps.dynamic),
            partition_count=deps.settings.partitions,
            metrics=deps.metrics.coordinator(coordinator),
            shares=Shares(deps.settings.client_limits, self._known_topics, self._state_bytes),
            outcome_history=deps.settings.outcome_history,
        )

    def _state_bytes(self) -> int:
        return sum(it.state_bytes for it in self.coordinators.drivers.values())

    def _pending_ack(self, partition: int) -> PendingAckDriver:
        deps = self._deps
        return PendingAckDriver(
            partition,
            self._owner_deps,
            groups=self._groups,
            limits=pending_ack_limits(deps.settings, deps.dynamic),
            metrics=deps.metrics.pending_ack(partition),
        )

    def _snapshot_writer(self, partition: int) -> SnapshotDriver:
        metrics = self._deps.metrics.snapshots(partition)
        return SnapshotDriver(partition, self._snapshot_deps, metrics=metrics)

    def _own_replication(self, app: faust.App, undecodable: PassedOver) -> None:
        """Runs replication controllers, see `placement.CONTROLLERS`."""

        def stats() -> dict[TopicPartition, ControllerStats]:
            drivers = controllers.drivers.values()
            return {data: one for driver in drivers for data, one in driver.stats().items()}

        metrics = GroupMetrics(self._deps.settings.cluster, stats)
        deps = replication_deps(self._deps, metrics)

        def controller(partition: int) -> GroupsOwner:
            return GroupsOwner(partition, deps)

        controllers = PartitionOwnerAgent(
            app, placement.CONTROLLERS, controller, self._ended, undecodable=undecodable
        )
        self._owners.append(controllers)
        self._deps.metrics.registry.register(metrics)

    def _own_index(self, app: faust.App) -> None:
        """Runs indexers of native transactions, see `placement.INDEXERS`."""
        metrics, deps = self._deps.metrics, index_deps(self._deps)

        def indexer(partition: int) -> IndexOwner:
            return IndexOwner(partition, deps, metrics=metrics.aborted_index(partition))

        indexers = PartitionOwners(
            app, placement.INDEXERS, indexer, self._ended, within=lambda it: it.ends
        )
        self._owners.append(indexers)
        metrics.watch_indexers(
            lambda: {it: one.stats() for it, one in indexers.drivers.items() if one.serving}
        )
