"""A worker's owners: coordinators, stores, snapshot writers, indexers, replication controllers.

*Source*: docs/protocols A7 (batching is switched while owners serve).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from stilltide.pipeline.drivers.coordinator.compacted_topics import CompactedTopics
from stilltide.pipeline.drivers.coordinator.known_topics import KnownTopics
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorOwner, Shares
from stilltide.pipeline.drivers.groups.owner import GroupsOwner
from stilltide.pipeline.drivers.native.owner import IndexOwner
from stilltide.pipeline.drivers.pending_ack.owner import PendingAckOwner
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
from stilltide.pipeline.drivers.shared.passed_over import PassedOver
from stilltide.pipeline.drivers.snapshots.owner import SnapshotOwner
from stilltide.pipeline.drivers.worker import placement
from stilltide.pipeline.drivers.worker.deps import (
    WorkerDeps,
    owner_deps,
    pending_ack_limits,
    replication_deps,
    txn_log_limits,
)
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.pipeline.metrics.groups import ControllerStats, GroupMetrics
from stilltide.schemas.topics import PENDING_ACK_LOG, TXN_LOG
from stilltide.schemas.values import TopicPartition


class Owners:
    """The owners of a worker, of each kind.

    Args:
        follow: has the owners of one kind follow the assignments of the workers' group, and take
            the requests that the group reads.
        deps: the dependencies of the owners.
        failed: called with an error when no owner is left that could serve; the worker has to stop.
    """

    def __init__(
        self,
        follow: Callable[[Runtime[Any, Any]], None],
        deps: WorkerDeps,
        failed: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._deps = deps
        self._failed = failed
        clock, allowed = deps.connector.clock, deps.options.allow_compacted
        self.compacted = CompactedTopics(deps.admin, clock, self._data_topics, allowed)
        self._owner_deps = owner_deps(deps, self.compacted.report)
        self.known_topics = KnownTopics(deps.admin)
        self._groups = deps.connector.group_admin()
        undecodable = PassedOver("requests_passed_over", deps.metrics.undecodable_requests)
        kind = partial(
            Runtime,
            ended=self._ended,
            chance=deps.connector.chance,
            undecodable=undecodable,
        )
        entries = deps.writer.hindrances.entries
        self.coordinators: Runtime[int, CoordinatorOwner] = kind(
            placement.COORDINATORS, self._coordinator, around=partial(entries, TXN_LOG)
        )
        self.pending_acks: Runtime[int, PendingAckOwner] = kind(
            placement.PENDING_ACK_STORES,
            self._pending_ack,
            around=partial(entries, PENDING_ACK_LOG),
        )
        self.snapshots: Runtime[int, SnapshotOwner] = kind(
            placement.SNAPSHOT_WRITERS, self._snapshot_writer
        )
        deps.acks.ways.neighbours = self.pending_acks.owners
        deps.barriers.ways.neighbours = self.coordinators.owners
        deps.acks.ways.reached = deps.barriers.ways.reached = deps.writer.reached
        deps.lines.owners[TXN_LOG] = self.coordinators.owners
        self._kinds: list[Runtime[int, Any]] = [
            self.coordinators,
            self.pending_acks,
            self.snapshots,
        ]
        if deps.options.clusters:
            self._kinds.append(self._controllers(kind))
        if deps.options.indexed_topics:
            self._kinds.append(self._indexers(kind))
        self._watch_metrics(deps)
        for runtime in self._kinds:
            follow(runtime)

    def _watch_metrics(self, deps: WorkerDeps) -> None:
        """Has the metrics ask the owners that serve."""
        deps.metrics.watch_coordinators(partial(_stats, self.coordinators))
        deps.metrics.watch_pending_acks(partial(_stats, self.pending_acks))
        deps.metrics.watch_snapshots(partial(_stats, self.snapshots))

    @property
    def serving(self) -> bool:
        """Whether coordinators are assigned, and they and all pending-ack stores serve."""
        owners = [*self.coordinators.owners.values(), *self.pending_acks.owners.values()]
        ended = [*self.coordinators.ends, *self.pending_acks.ends]
        serving = sum(owner.serving for owner in owners)
        return bool(self.coordinators.owners) and serving + len(ended) == len(owners)

    @property
    def ends(self) -> Mapping[str, Mapping[str, OwnerEnd]]:
        """The owners that have ended by an error, by kind, and by number or name."""
        return {it.placement.name: it.ends for it in self._kinds}

    def finding(self) -> ProbeResult:
        """Whether the group has assigned partitions, or none, and all of them are recovered.

        An owner that has ended by an error is named with its cause (B8).
        """
        served: list[str] = []
        now_s = asyncio.get_running_loop().time()
        ended = [
            f"{kind.placement.name} {number} has ended: {end.text(now_s)}"
            for kind in self._kinds
            for number, end in kind.ends.items()
        ]
        if ended:
            return ProbeResult(passed=False, text="; ".join(ended))
        for agent in self._kinds:
            name = agent.placement.title
            if not agent.joined:
                return ProbeResult(passed=False, text="the group has assigned none yet")
            recovering = sorted(it for it, owner in agent.owners.items() if not owner.serving)
            if recovering:
                return ProbeResult(passed=False, text=f"recovering {name}: {recovering}")
            served.append(f"{name}: {sorted(agent.owners)}")
        return ProbeResult(passed=True, text=f"serving {', '.join(served)}")

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What runs while the owners do, by name."""
        return self._deps.work() | {
            "dynamic-settings": self._follow_settings(),
            "topics": self.known_topics.run(),
            "policies": self.compacted.run(),
        }

    def _data_topics(self) -> set[str] | None:
        """The topics with records of coordinated transactions; None while an owner recovers."""
        if not self.finding().passed:
            return None
        return set[str]().union(*(it.data_topics for it in self.snapshots.owners.values()))

    async def stop(self) -> None:
        """Stops every owner; requests in flight are not answered."""
        await asyncio.gather(*(it.stop() for it in self._kinds))
        await self._groups.close()

    def retry_now(self) -> None:
        """Tries the owners that have ended again; an outage that ended them is over (B8)."""
        for runtime in self._kinds:
            runtime.retry_now()

    async def _follow_settings(self) -> None:
        """Passes changed dynamic settings on to the owners, until cancelled."""
        deps = self._deps
        async for _ in deps.dynamic.changes():
            for coordinator in self.coordinators.owners.values():
                coordinator.limits_changed(txn_log_limits(deps))
            for store in self.pending_acks.owners.values():
                store.limits_changed(pending_ack_limits(deps))

    def _ended(self) -> None:
        """An owner has ended; the worker ends only if nothing is left to be asked (B8)."""
        asked = [it for it in (self.coordinators, self.pending_acks, self.snapshots) if it.owners]
        if asked and all(it.all_ended for it in asked):
            self._failed(next(iter(asked[0].ends.values())).error)

    def _coordinator(self, coordinator: int) -> CoordinatorOwner:
        deps = self._deps
        return CoordinatorOwner(
            coordinator,
            self._owner_deps,
            marker_writer=deps.marker_writer,
            ends=deps.ends,
            acks=deps.acks,
            limits=txn_log_limits(deps),
            partition_count=deps.options.partitions,
            metrics=deps.metrics.coordinator(coordinator),
            shares=Shares(deps.options.client_limits, self.known_topics, self._state_bytes),
            outcome_history=deps.options.outcome_history,
        )

    def _state_bytes(self) -> int:
        return sum(it.state_bytes for it in self.coordinators.owners.values())

    def _pending_ack(self, partition: int) -> PendingAckOwner:
        deps = self._deps
        return PendingAckOwner(
            partition,
            self._owner_deps,
            groups=self._groups,
            limits=pending_ack_limits(deps),
            metrics=deps.metrics.pending_ack(partition),
        )

    def _snapshot_writer(self, partition: int) -> SnapshotOwner:
        deps = self._deps
        return SnapshotOwner(
            partition,
            self._owner_deps,
            coordinators=deps.barriers,
            limits=deps.options.snapshots,
            metrics=deps.metrics.snapshots(partition),
        )

    def _controllers(self, kind: Callable[..., Any]) -> Runtime[int, GroupsOwner]:
        """LinkRun controllers, see `placement.CONTROLLERS`."""

        def stats() -> dict[TopicPartition, ControllerStats]:
            owners = controllers.owners.values()
            return {data: figures for owner in owners for data, figures in owner.stats().items()}

        metrics = GroupMetrics(self._deps.options.cluster, stats)
        deps = replication_deps(self._deps, metrics)
        controllers: Runtime[int, GroupsOwner] = kind(
            placement.CONTROLLERS, lambda partition: GroupsOwner(partition, deps)
        )
        self._deps.metrics.registry.register(metrics)
        return controllers

    def _indexers(self, kind: Callable[..., Any]) -> Runtime[int, IndexOwner]:
        """Indexers of native transactions, see `placement.INDEXERS`."""
        deps, metrics = self._deps, self._deps.metrics
        assert deps.batches is not None, "indexers read batches"
        owner = partial(
            IndexOwner,
            deps=self._owner_deps,
            batches=deps.batches,
            topics=deps.options.indexed_topics,
        )
        indexers: Runtime[int, IndexOwner] = kind(
            placement.INDEXERS,
            lambda partition: owner(partition, metrics=metrics.aborted_index(partition)),
        )
        metrics.watch_indexers(partial(_stats, indexers))
        return indexers


def _stats(runtime: Runtime[int, Any]) -> dict[int, Any]:
    """The figures of the owners that serve."""
    return {number: owner.stats() for number, owner in runtime.owners.items() if owner.serving}
