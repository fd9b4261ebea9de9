"""A worker's owners on the memory broker, without Faust: a queue and a reader are its agents."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from prometheus_client import CollectorRegistry

from connectors.base import Record
from connectors.clock import SystemClock
from connectors.errors import RetriableError
from connectors.memory.connector import MemoryConnector
from pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from pipeline.drivers.coordinator import CoordinatorDriver
from pipeline.drivers.end_offsets import EndOffsets
from pipeline.drivers.owned_log import OwnedLog
from pipeline.drivers.owner import OwnerParts
from pipeline.drivers.pending_ack import PendingAckDriver
from pipeline.drivers.requests import PENDING_ACK_SERVICE, AckRequests, Requests
from pipeline.metrics import WorkerMetrics
from schemas.topics import ACK_REQUESTS, TXN_REQUESTS, system_topics
from schemas.values import Offset, TopicPartition

PARTITIONS = 2
"""Of txn-markers, txn-responses and ack-requests."""

AWAY_S = 0.01
"""Between two looks at a broker that is down."""

SETTLE_RESEND_S = 0.2

WAIT_S = 10.0
"""For what happens within milliseconds."""


async def until(holds: Callable[[], object]) -> None:
    """Lets the loop run until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event, and the broker no thread
            await asyncio.sleep(0)


class EntryQueue:
    """Writes entries in the order they are handed over, as the buffered-writer agent does."""

    def __init__(self) -> None:
        self._entries: asyncio.Queue[tuple[OwnedLog, WriteEntry]] = asyncio.Queue()

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Hands one entry over."""
        self._entries.put_nowait((log, entry))

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            log, entry = await self._entries.get()
            await log.write_entry(entry)


class MemoryWorker:
    """Serves every coordinator and pending-ack store from entry to exit.

    Like a group that has committed nothing, it is given every request since the beginning.
    """

    def __init__(
        self,
        connector: MemoryConnector,
        *,
        coordinators: int = 1,
        partitions: int = PARTITIONS,
        limits: BatchLimits | None = None,
        txn_timeout_ms_max: int = 120_000,
        broker_away_s_max: float = 60.0,
    ) -> None:
        self._connector = connector
        self._coordinators, self._partitions = coordinators, partitions
        self._limits = limits or BatchLimits()
        self._txn_timeout_ms_max = txn_timeout_ms_max
        self._broker_away_s_max = broker_away_s_max
        self._stack = AsyncExitStack()
        self.metrics = WorkerMetrics("test", CollectorRegistry())
        self.drivers: list[CoordinatorDriver] = []
        self.pending_acks: list[PendingAckDriver] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        admin = self._connector.admin()
        await admin.ensure_topics(
            system_topics(coordinators=self._coordinators, partitions=self._partitions)
        )
        queue, ends = EntryQueue(), EndOffsets(admin)
        writer = self._connector.writer("worker")
        self._stack.push_async_callback(writer.close, timeout_s=0)
        acks: AckRequests = Requests(
            PENDING_ACK_SERVICE,
            self._connector,
            writer,
            name="worker",
            limits=BatchLimits(),
            request_timeout_s=WAIT_S,
            resend_s=SETTLE_RESEND_S,
        )
        await acks.open(partition_count=self._partitions, response_partition_count=self._partitions)
        self._stack.push_async_callback(acks.close)
        parts = OwnerParts(
            self._connector, writer, admin, queue.submit, SystemClock(), self._broker_away_s_max
        )
        for coordinator in range(self._coordinators):
            driver = CoordinatorDriver(
                coordinator,
                parts,
                marker_writer=writer,
                ends=ends,
                acks=acks,
                limits=self._limits,
                partition_count=self._partitions,
                metrics=self.metrics.coordinator(coordinator),
                txn_timeout_ms_max=self._txn_timeout_ms_max,
            )
            self.drivers.append(driver)
        for partition in range(self._partitions):
            metrics = self.metrics.pending_ack(partition)
            store = PendingAckDriver(partition, parts, limits=self._limits, metrics=metrics)
            self.pending_acks.append(store)
        owners = [*self.drivers, *self.pending_acks]
        self.tasks = [asyncio.create_task(it.run()) for it in owners]
        others = [queue.run(), ends.run(), self._receive()]
        self._helpers = [asyncio.create_task(work) for work in others]
        await until(lambda: all(it.serving for it in owners) or any(it.done() for it in self.tasks))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in [*self.tasks, *self._helpers]:
            task.cancel()
        await asyncio.gather(*self.tasks, *self._helpers, return_exceptions=True)
        await self._stack.aclose()

    async def _receive(self) -> None:
        reader = self._connector.reader("requests")
        self._stack.push_async_callback(reader.close)
        owners = {
            **{TopicPartition(TXN_REQUESTS, n): it for n, it in enumerate(self.drivers)},
            **{TopicPartition(ACK_REQUESTS, n): it for n, it in enumerate(self.pending_acks)},
        }
        await reader.assign(dict.fromkeys(owners, Offset(0)))
        while True:
            try:
                items = await reader.read()
            except RetriableError:
                await asyncio.sleep(AWAY_S)
                continue
            for item in items:
                if isinstance(item, Record):
                    owner = owners[TopicPartition(item.topic, item.partition)]
                    owner.requests_received(item.value)
