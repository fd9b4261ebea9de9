"""One worker process: both Faust Apps, coordinators, pending-ack stores and what they share.

*Source*: system.md, Process shapes 1; facts, faust.md 5.3 (stop), 6 (several Apps).
"""

import asyncio
import gc
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faust
import structlog

from connectors.base import Connector, LogAdmin, LogWriter
from connectors.clock import SystemClock
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from pipeline.agents.apps import cluster_app, writer_app
from pipeline.agents.buffered_writer import BufferedWriter
from pipeline.agents.partition_owner import PartitionOwnerAgent
from pipeline.config import Settings
from pipeline.core.buffered_log.accumulator import BatchLimits
from pipeline.drivers.coordinator import CoordinatorDriver
from pipeline.drivers.end_offsets import EndOffsets
from pipeline.drivers.pending_ack import PendingAckDriver
from pipeline.drivers.requests import PENDING_ACK_SERVICE, AckRequests, Requests
from schemas.topics import ACK_REQUESTS, TXN_REQUESTS, system_topics

log = structlog.get_logger(__name__)

SERVING_POLL_S = 0.05
STOP_TIMEOUT_S = 5.0

SETTLE_RESEND_S = 1.0
SETTLE_TIMEOUT_S = 30.0
"""Then the coordinator settles anew; a subscription's owner may be away for long."""

GIL_SWITCH_INTERVAL_S = 0.0005
"""A record crosses three threads on its way; at Python's 5 ms each of them would wait so long."""


class _Shared(NamedTuple):
    """What the owners of a worker's partitions share."""

    connector: Connector
    admin: LogAdmin
    writer: LogWriter
    ends: EndOffsets
    acks: AckRequests
    buffered_writer: BufferedWriter


class Worker:
    """Runs until stopped or until a part of it fails.

    Args:
        settings: of this worker.
        serving: called once with the coordinators, when every assigned one first serves.
    """

    def __init__(self, settings: Settings, serving: Callable[[list[int]], None]) -> None:
        self._settings = settings
        self._serving = serving
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT.

        Raises:
            RetriableError, UnavailableError: the cluster cannot be reached, or stayed away; names
                its address.
            FatalError: a system topic is not as it must be.
            DecodeError: a log entry or request cannot be understood; names its place.
        """
        sys.setswitchinterval(GIL_SWITCH_INTERVAL_S)
        settings = self._settings
        connector = KafkaConnector(
            KafkaConfig(
                bootstrap_servers=settings.bootstrap_servers,
                request_timeout_s=settings.request_timeout_s,
            )
        )
        admin = connector.admin()
        specs = system_topics(coordinators=settings.coordinators, partitions=settings.partitions)
        loop = asyncio.get_running_loop()
        threading.excepthook = _thread_failed
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        try:
            await admin.ensure_topics(specs)
            ends = EndOffsets(admin)
            with tempfile.TemporaryDirectory(prefix="stilltide-worker-") as data_dir:
                await self._serve(connector, admin, ends, Path(data_dir))
        finally:
            await admin.close()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException) -> None:
        """A part has failed; the worker stops and `run` raises it."""
        if self._failure is None:
            self._failure = error
        self._stop.set()

    async def _serve(
        self, connector: Connector, admin: LogAdmin, ends: EndOffsets, data_dir: Path
    ) -> None:
        settings = self._settings
        writers = writer_app(settings, data_dir)
        cluster = cluster_app(settings, data_dir)
        buffered_writer = BufferedWriter(writers)
        writer = connector.writer("worker")
        acks = await _settling(connector, writer, settings.partitions)

        shared = _Shared(connector, admin, writer, ends, acks, buffered_writer)
        coordinators = PartitionOwnerAgent(
            cluster, "coordinator", TXN_REQUESTS, partial(self._coordinator, shared), self.fail
        )
        pending_acks = PartitionOwnerAgent(
            cluster, "pending-ack", ACK_REQUESTS, partial(self._pending_acks, shared), self.fail
        )
        tasks = [
            self._task(ends.run(), "end-offsets"),
            self._task(acks.failed(), "settling"),
            self._task(buffered_writer.run(), "buffered-writer"),
            self._task(self._announce(coordinators, pending_acks), "announce"),
            self._task(self._run_apps(writers, cluster), "apps"),
        ]
        try:
            await self._stop.wait()
        finally:
            await asyncio.gather(coordinators.stop(), pending_acks.stop())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await acks.close()
            await asyncio.gather(_stop(cluster), _stop(writers))
            await writer.close()

    def _coordinator(self, shared: _Shared, coordinator: int) -> CoordinatorDriver:
        settings = self._settings
        return CoordinatorDriver(
            coordinator,
            shared.connector,
            writer=shared.writer,
            ends=shared.ends,
            admin=shared.admin,
            acks=shared.acks,
            submit=shared.buffered_writer.submit,
            limits=txn_log_limits(settings),
            partition_count=settings.partitions,
            clock=SystemClock(),
            txn_timeout_ms_max=settings.txn_timeout_ms_max,
            broker_away_s_max=settings.broker_away_s_max,
        )

    def _pending_acks(self, shared: _Shared, partition: int) -> PendingAckDriver:
        return PendingAckDriver(
            partition,
            shared.connector,
            writer=shared.writer,
            admin=shared.admin,
            submit=shared.buffered_writer.submit,
            limits=pending_ack_limits(self._settings),
            clock=SystemClock(),
            broker_away_s_max=self._settings.broker_away_s_max,
        )

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs `work`; what it fails with ends the worker."""
        task = asyncio.create_task(work, name=name)

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.fail(error)

        task.add_done_callback(ended)
        return task

    async def _run_apps(self, *apps: faust.App) -> None:
        """Starts the Apps; one that stops by itself has crashed."""
        for app in apps:
            app.finalize()
            await app.maybe_start()
        await asyncio.gather(*map(self._watch, apps))

    async def _watch(self, app: faust.App) -> None:
        await app.wait_until_stopped()
        self.fail(app.crash_reason or RuntimeError(f"{app.conf.id} stopped"))

    async def _announce(
        self,
        coordinators: PartitionOwnerAgent[CoordinatorDriver],
        pending_acks: PartitionOwnerAgent[PendingAckDriver],
    ) -> None:
        while True:
            owners = [*coordinators.drivers.values(), *pending_acks.drivers.values()]
            if coordinators.drivers and all(owner.serving for owner in owners):
                # What was loaded so far lives as long as the process. Left to the collector, it is
                # walked again and again under load, at 50 ms a time.
                gc.collect()
                gc.freeze()
                self._serving(sorted(coordinators.drivers))
                return
            await asyncio.sleep(SERVING_POLL_S)


def _thread_failed(failure: threading.ExceptHookArgs) -> None:
    """Faust's consumer thread ends by cancellation where the broker is away: that is no news."""
    if failure.exc_type is not asyncio.CancelledError:
        threading.__excepthook__(failure)


async def _stop(app: faust.App) -> None:
    """Stops an App; where the broker is away, Faust's consumer thread may never say it ended."""
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await app.stop()
    except TimeoutError:
        log.warning("app_not_stopped", app=app.conf.id, waited_s=STOP_TIMEOUT_S)


async def _settling(connector: Connector, writer: LogWriter, partitions: int) -> AckRequests:
    """What coordinators ask the owners of pending acknowledgements with."""
    acks: AckRequests = Requests(
        PENDING_ACK_SERVICE,
        connector,
        writer,
        name="worker",
        limits=BatchLimits(),
        request_timeout_s=SETTLE_TIMEOUT_S,
        resend_s=SETTLE_RESEND_S,
    )
    await acks.open(partition_count=partitions, response_partition_count=partitions)
    return acks


def txn_log_limits(settings: Settings) -> BatchLimits:
    """Thresholds of the transaction log (A)."""
    return BatchLimits(
        records_max=settings.txn_log_batch_records_max,
        bytes_max=settings.txn_log_batch_bytes_max,
        delay_ms_max=settings.txn_log_batch_delay_ms_max,
        eager=settings.txn_log_flush_mode == "eager",
        batching=settings.txn_log_batching_enabled,
    )


def pending_ack_limits(settings: Settings) -> BatchLimits:
    """Thresholds of the pending-ack log (A)."""
    return BatchLimits(
        records_max=settings.pending_ack_batch_records_max,
        bytes_max=settings.pending_ack_batch_bytes_max,
        delay_ms_max=settings.pending_ack_batch_delay_ms_max,
        eager=settings.pending_ack_flush_mode == "eager",
        batching=settings.pending_ack_batching_enabled,
    )
