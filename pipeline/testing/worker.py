"""A worker's owners on the memory broker; a queue and a reader replace the Faust agents.

*Source*: docs/services.md. Every protocol rule is that of a real worker: the same owners run here.

*Refuses*: to be more than one process's broker: nothing is kept when the process ends.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from prometheus_client import CollectorRegistry

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.ports.records import Record
from stilltide.connectors.ports.writers import LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.core.coordinator.admission import ClientLimits
from stilltide.pipeline.core.coordinator.outcomes import OUTCOME_HISTORY
from stilltide.pipeline.core.service.session import Numbered
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.coordinator.end_offsets import EndOffsets
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.drivers.coordinator.known_topics import KnownTopics
from stilltide.pipeline.drivers.coordinator.owner import CoordinatorDriver, Shares
from stilltide.pipeline.drivers.pending_ack.owner import PendingAckDriver
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.service.kinds.pending_ack import (
    PENDING_ACK_OPERATOR_SERVICE,
    AckRequests,
)
from stilltide.pipeline.drivers.service.lines.server import LineServer
from stilltide.pipeline.drivers.service.owner import OwnerDeps
from stilltide.pipeline.drivers.service.replies import Replies
from stilltide.pipeline.drivers.service.requests import (
    COORDINATOR_OPERATOR_SERVICE,
    CoordinatorRequests,
    Requests,
    Service,
)
from stilltide.pipeline.drivers.service.watches.watched_writer import WatchedWriter
from stilltide.pipeline.drivers.shared.passed_over import PassedOver, hand_over
from stilltide.pipeline.drivers.snapshots.owner import SnapshotDriver
from stilltide.pipeline.drivers.snapshots.ownership import SnapshotDeps
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.topics import (
    ACK_REQUESTS,
    OPERATOR_ACK_REQUESTS,
    OPERATOR_REQUESTS,
    SNAPSHOT_REQUESTS,
    TXN_LOG,
    TXN_REQUESTS,
    system_topics,
)
from stilltide.schemas.values import Offset, TopicPartition

PARTITIONS = 2
"""Partition count of the system topics to which data partitions are hashed."""

AWAY_S = 0.01
"""Time between two attempts while the broker is down."""

RESEND_S = 0.2

START_S = 60.0
"""Time-out of the start, which takes milliseconds on a machine that is not busy."""

ASK_S = 10.0
"""Time-out of a question that one owner asks another."""

B = TypeVar("B")
R = TypeVar("R", bound=Numbered)
A = TypeVar("A")


class EntryQueue:
    """Writes entries in the order of `submit`, as the buffered-writer agent does."""

    def __init__(self) -> None:
        self._entries: asyncio.Queue[tuple[OwnedLog, WriteEntry]] = asyncio.Queue()

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Queues one entry."""
        self._entries.put_nowait((log, entry))

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            log, entry = await self._entries.get()
            await log.write_entry(entry)


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
    """

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
        self._coordinators, self._partitions = coordinators, partitions
        self._limits = limits or BatchLimits()
        self._snapshot_limits = snapshots
        self._client_limits = client_limits or ClientLimits(txn_timeout_ms_max=txn_timeout_ms_max)
        self._outcome_history = outcome_history
        self._stack = AsyncExitStack()
        self.metrics = WorkerMetrics("test", CollectorRegistry())
        self.hindrances = Hindrances()
        self.drivers: list[CoordinatorDriver] = []
        self.pending_acks: list[PendingAckDriver] = []
        self.snapshots: list[SnapshotDriver] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        admin = self._connector.admin()
        await grow_coordinators(admin, self._coordinators)
        await admin.ensure_topics(
            system_topics(coordinators=self._coordinators, partitions=self._partitions)
        )
        queue, ends = EntryQueue(), EndOffsets(admin, self.hindrances)
        writer = WatchedWriter(self._connector.writer("worker"), self.hindrances)
        self._stack.push_async_callback(writer.close, timeout_s=0)
        acks: AckRequests = self._asking(PENDING_ACK_OPERATOR_SERVICE, writer)
        barriers: CoordinatorRequests = self._asking(COORDINATOR_OPERATOR_SERVICE, writer)
        for line, count in ((acks, self._partitions), (barriers, self._coordinators)):
            await line.open(partition_count=count, response_partition_count=self._partitions)
            self._stack.push_async_callback(line.close)
        replies = Replies(writer, [acks, barriers], self._lines, self._partitions)
        deps = OwnerDeps(
            connector=self._connector,
            writer=writer,
            replies=replies,
            admin=admin,
            submit=queue.submit,
            foreign=PassedOver("log_entry_passed_over", self.metrics.foreign_entries),
            clock=self._connector.clock,
            reply_partitions=self._partitions,
            lines=self._lines,
            hindrances=self.hindrances,
        )
        known_topics = KnownTopics(admin)
        names = await admin.list_topics()
        # Else the first request of a topic would be overtaken.
        known_topics.learn(await admin.describe_topics(names), await admin.topic_configs(names))
        self._make_owners(deps, ends, acks, known_topics)
        acks.ways.neighbours = dict(enumerate(self.pending_acks))
        barriers.ways.neighbours = dict(enumerate(self.drivers))
        acks.ways.reached = barriers.ways.reached = writer.reached
        self._lines.owners[TXN_LOG] = barriers.ways.neighbours
        if self._snapshot_limits is not None:
            self._make_snapshot_writers(deps, barriers, self._snapshot_limits)
        owners = [*self.drivers, *self.pending_acks, *self.snapshots]
        self.tasks = [asyncio.create_task(it.run()) for it in owners]
        others = [queue.run(), ends.run(), known_topics.run(), self._receive()]
        helpers = [asyncio.create_task(work) for work in others]
        self._stack.push_async_callback(_cancelled, helpers)
        async with asyncio.timeout(START_S):
            while not (all(it.serving for it in owners) or any(it.done() for it in self.tasks)):  # noqa: ASYNC110 - owners tell nobody that they serve
                await asyncio.sleep(0)
        return self

    def _make_owners(
        self, deps: OwnerDeps, ends: EndOffsets, acks: AckRequests, known_topics: KnownTopics
    ) -> None:
        for coordinator in range(self._coordinators):
            driver = CoordinatorDriver(
                coordinator,
                deps,
                marker_writer=deps.writer,
                ends=ends,
                acks=acks,
                limits=self._limits,
                partition_count=self._partitions,
                metrics=self.metrics.coordinator(coordinator),
                shares=Shares(
                    self._client_limits,
                    known_topics,
                    lambda: sum(it.state_bytes for it in self.drivers),
                ),
                outcome_history=self._outcome_history,
            )
            self.drivers.append(driver)
        for partition in range(self._partitions):
            metrics = self.metrics.pending_ack(partition)
            store = PendingAckDriver(
                partition,
                deps,
                groups=self._connector.group_admin(),
                limits=self._limits,
                metrics=metrics,
            )
            self.pending_acks.append(store)

    def _make_snapshot_writers(
        self, shared: OwnerDeps, barriers: CoordinatorRequests, limits: SnapshotLimits
    ) -> None:
        deps = SnapshotDeps(
            connector=self._connector,
            admin=shared.admin,
            replies=shared.replies,
            coordinators=barriers,
            clock=shared.clock,
            limits=limits,
            partition_count=self._partitions,
            hindrances=self.hindrances,
        )
        for partition in range(self._partitions):
            metrics = self.metrics.snapshots(partition)
            self.snapshots.append(SnapshotDriver(partition, deps, metrics=metrics))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await _cancelled(self.tasks)
        await self._stack.aclose()

    def _asking(self, service: Service[B, R, A], writer: LogWriter) -> Requests[B, R, A]:
        return Requests(
            service,
            self._connector,
            writer,
            name="worker",
            request_timeout_s=ASK_S,
            resend_s=RESEND_S,
        )

    async def _receive(self) -> None:
        reader = self._connector.reader("requests", committed=False)
        self._stack.push_async_callback(reader.close)
        owners = {
            **{TopicPartition(TXN_REQUESTS, n): it for n, it in enumerate(self.drivers)},
            **{TopicPartition(ACK_REQUESTS, n): it for n, it in enumerate(self.pending_acks)},
            **{TopicPartition(OPERATOR_REQUESTS, n): it for n, it in enumerate(self.drivers)},
            **{
                TopicPartition(OPERATOR_ACK_REQUESTS, n): it
                for n, it in enumerate(self.pending_acks)
            },
            **{TopicPartition(SNAPSHOT_REQUESTS, n): it for n, it in enumerate(self.snapshots)},
        }
        await reader.assign(dict.fromkeys(owners, Offset(0)))
        undecodable = PassedOver("requests_passed_over", self.metrics.undecodable_requests)
        while True:
            try:
                items = await reader.read()
            except RetriableError:
                await asyncio.sleep(AWAY_S)
                continue
            for item in items:
                if isinstance(item, Record):
                    operator = item.topic in {OPERATOR_REQUESTS, OPERATOR_ACK_REQUESTS}
                    take = partial(owners[item.data].requests_received, operator=operator)
                    hand_over(take, item.data, item.offset, item.value, undecodable=undecodable)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
