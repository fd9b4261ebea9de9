"""A worker on the memory broker: the owners of `stilltide worker`, which all partitions belong to.

*Source*: docs/services.md. Every protocol rule is that of a real worker: the same owners run here,
and only the group of workers is missing.

*Refuses*: to be more than one process's broker: nothing is kept when the process ends.
"""

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

from prometheus_client import CollectorRegistry

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.core.coordinator.admission import ClientLimits
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import EntryQueue
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorOwner
from stilltide.pipeline.drivers.pending_ack.owner import PendingAckOwner
from stilltide.pipeline.drivers.service.ended import OwnerEnd
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.snapshots.owner import SnapshotOwner
from stilltide.pipeline.drivers.worker.deps import WorkerOptions, make_topics, open_deps
from stilltide.pipeline.drivers.worker.owners import Owners
from stilltide.pipeline.drivers.worker.placement import COORDINATORS, SNAPSHOT_WRITERS
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.retry import Retry
from stilltide.schemas.values import Offset, TopicPartition

PARTITIONS = 2
"""Partition count of the system topics to which data partitions are hashed."""

AWAY = Retry(0.01)
"""Between two attempts to read while the broker is down."""

START_S = 60.0
"""Time-out of the start, which takes milliseconds on a machine that is not busy."""

ASK_S = 10.0
"""Time-out of a question that one owner asks another."""


class MemoryWorker:
    """Serves every coordinator, pending-ack store and snapshot writer from entry to exit.

    The worker gets every request since the beginning, like a group without commits. Snapshot
    writers, which trim the markers, run only with `snapshots`.

    Args:
        connector: the memory broker.
        coordinators: number of coordinators.
        partitions: number of partitions of each other system topic.
        limits: thresholds of the buffered writers.
        snapshots: limits of the snapshot writers; None: there are none.
        txn_timeout_ms_max: the longest time-out of a transaction.
        client_limits: what clients may hold, instead of `txn_timeout_ms_max`.
        outcome_history: how many outcomes each coordinator remembers (C12).
        lines: server of direct lines; the default takes none.

    Attributes:
        owners: the owners, of each kind.
    """

    owners: Owners

    def __init__(
        self,
        connector: MemoryConnector,
        *,
        coordinators: int = 1,
        partitions: int = PARTITIONS,
        limits: BatchLimits | None = None,
        snapshots: SnapshotLimits | None = None,
        txn_timeout_ms_max: int = 120_000,
        client_limits: ClientLimits | None = None,
        outcome_history: int = OUTCOME_HISTORY,
        lines: LineServer | None = None,
    ) -> None:
        self._lines = lines or LineServer(chance=connector.chance)
        self._connector = connector
        self._takes_snapshots = snapshots is not None
        self._options = WorkerOptions(
            cluster="test",
            coordinators=coordinators,
            partitions=partitions,
            txn_log=limits or BatchLimits(),
            pending_ack=limits or BatchLimits(),
            client_limits=client_limits or ClientLimits(txn_timeout_ms_max=txn_timeout_ms_max),
            outcome_history=outcome_history,
            snapshots=snapshots or SnapshotLimits(),
            ask_timeout_s=ASK_S,
        )
        self._runtimes: list[Runtime[int, Any]] = []
        self._stack = AsyncExitStack()
        self.metrics = WorkerMetrics("test", CollectorRegistry())
        self.hindrances = Hindrances()

    @property
    def coordinators(self) -> list[CoordinatorOwner]:
        """The coordinators."""
        return list(self.owners.coordinators.owners.values())

    @property
    def pending_acks(self) -> list[PendingAckOwner]:
        """The pending-ack stores."""
        return list(self.owners.pending_acks.owners.values())

    @property
    def snapshots(self) -> list[SnapshotOwner]:
        """The snapshot writers."""
        return list(self.owners.snapshots.owners.values())

    async def __aenter__(self) -> Self:
        admin = self._connector.admin()
        await make_topics(admin, OutageGuard(admin), self._options)
        dynamic = DynamicSettings(self._connector)
        self._stack.push_async_callback(dynamic.close)
        await dynamic.open()
        deps = await open_deps(
            self._connector,
            admin,
            self._options,
            entries=EntryQueue(),
            dynamic=dynamic,
            metrics=self.metrics,
            hindrances=self.hindrances,
            lines=self._lines,
        )
        self._stack.push_async_callback(deps.close, flush_s=0)
        self.owners = Owners(self._follow, deps)
        names = await admin.list_topics()
        # Else the first request of a topic would be overtaken.
        known_topics = self.owners.known_topics
        known_topics.learn(await admin.describe_topics(names), await admin.topic_configs(names))
        works = [*self.owners.work().values(), self._receive()]
        self._stack.push_async_callback(cancelled, *map(asyncio.create_task, works))
        self._stack.push_async_callback(self.owners.stop)
        for runtime in self._runtimes:
            await runtime.assign(range(self._count(runtime)))
        async with asyncio.timeout(START_S):
            while not self._serves():  # noqa: ASYNC110 - owners tell nobody that they serve
                await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def ends(self) -> dict[str, OwnerEnd]:
        """The owners that have ended by an error, by kind and number."""
        return {
            f"{kind} {number}": end
            for kind, ends in self.owners.ends.items()
            for number, end in ends.items()
        }

    def revoke(self) -> None:
        """Takes all partitions away: owners that are fenced from now on do not begin again."""
        for runtime in self._runtimes:
            runtime.revoke()

    def _follow(self, runtime: Runtime[int, Any]) -> None:
        """This worker is the only one: it has all partitions."""
        if runtime.placement != SNAPSHOT_WRITERS or self._takes_snapshots:
            self._runtimes.append(runtime)

    def _count(self, runtime: Runtime[int, Any]) -> int:
        options = self._options
        is_coordinators = runtime.placement == COORDINATORS
        return options.coordinators if is_coordinators else options.partitions

    def _serves(self) -> bool:
        """Whether all owners serve, or one has ended."""
        owners = [owner for runtime in self._runtimes for owner in runtime.owners.values()]
        return all(owner.serving for owner in owners) or bool(self.ends)

    async def _receive(self) -> None:
        reader = self._connector.reader("requests", committed=False)
        self._stack.push_async_callback(reader.close)
        runtimes = {
            TopicPartition(topic, number): runtime
            for runtime in self._runtimes
            for topic in (runtime.placement.topic, runtime.placement.operator_topic)
            if topic is not None
            for number in range(self._count(runtime))
        }
        await reader.assign(dict.fromkeys(runtimes, Offset(0)))
        while True:
            try:
                items = await reader.read()
            except RetriableError:
                await asyncio.sleep(AWAY.wait_s())
                continue
            for item in items:
                if isinstance(item, Record):
                    runtimes[item.data].received(item.data, item.offset, item.value)
