"""One worker process: both Faust Apps, the coordinators and what they share.

*Source*: system.md, Process shapes 1; facts, faust.md 5.3 (stop), 6 (several Apps).
"""

import asyncio
import gc
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import faust
import structlog
from prometheus_client import CollectorRegistry, disable_created_metrics

from connectors.base import Connector, LogAdmin
from connectors.clock import SystemClock
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from pipeline.agents.apps import cluster_app, writer_app
from pipeline.agents.buffered_writer import BufferedWriter
from pipeline.agents.coordinator import CoordinatorAgent
from pipeline.agents.probes import Finding, Probes, broker_check
from pipeline.config import Settings
from pipeline.core.buffered_log.accumulator import BatchLimits
from pipeline.drivers.coordinator import CoordinatorDriver
from pipeline.drivers.dynamic_settings import DynamicSettings
from pipeline.drivers.end_offsets import EndOffsets
from pipeline.metrics import WorkerMetrics
from schemas.settings import TXN_LOG_BATCHING_ENABLED
from schemas.topics import system_topics

log = structlog.get_logger(__name__)

SERVING_POLL_S = 0.05
STOP_TIMEOUT_S = 5.0

GIL_SWITCH_INTERVAL_S = 0.0005
"""A record crosses three threads on its way; at Python's 5 ms each of them would wait so long."""


class Worker:
    """Runs until stopped or until a part of it fails.

    Args:
        settings: of this worker.
        serving: called once with the coordinators and the address of the web site, when every
            assigned one first serves.
    """

    def __init__(self, settings: Settings, serving: Callable[[list[int], str], None]) -> None:
        self._settings = settings
        self._serving = serving
        self._metrics = WorkerMetrics(settings.cluster, CollectorRegistry())
        self._agent: CoordinatorAgent | None = None
        self._web = ""
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT.

        Raises:
            RetriableError, UnavailableError: the cluster cannot be reached, or stayed away; names
                its address.
            FatalError: a system topic is not as it must be.
            DecodeError: a log entry, request or dynamic setting cannot be understood; names its
                place.
            ConfigError: the port of the web site is taken.
        """
        sys.setswitchinterval(GIL_SWITCH_INTERVAL_S)
        disable_created_metrics()  # a time stamp beside each sample tells nothing new
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
        ready = {"broker": broker_check(admin), "coordinators": self._coordinators_serve}
        probes = Probes(self._metrics.registry, ready)
        dynamic = DynamicSettings(
            connector, changed=self._settings_changed, patience_s=settings.broker_away_s_max
        )
        try:
            self._web = await probes.start(settings.web_host, settings.web_port)
            log.info("web_listening", address=self._web)
            await admin.ensure_topics(specs)
            await dynamic.open()
            with tempfile.TemporaryDirectory(prefix="stilltide-worker-") as data_dir:
                await self._serve(connector, admin, dynamic, Path(data_dir))
        finally:
            await dynamic.close()
            await probes.close()
            await admin.close()
        if self._failure is not None:
            raise self._failure

    def fail(self, error: BaseException) -> None:
        """A part has failed; the worker stops and `run` raises it."""
        if self._failure is None:
            self._failure = error
        self._stop.set()

    async def _serve(
        self, connector: Connector, admin: LogAdmin, dynamic: DynamicSettings, data_dir: Path
    ) -> None:
        ends = EndOffsets(admin)
        writers = writer_app(self._settings, data_dir)
        cluster = cluster_app(self._settings, data_dir)
        buffered_writer = BufferedWriter(writers)
        writer = connector.writer("worker")

        def make_driver(coordinator: int) -> CoordinatorDriver:
            return CoordinatorDriver(
                coordinator,
                connector,
                writer=writer,
                ends=ends,
                admin=admin,
                submit=buffered_writer.submit,
                limits=txn_log_limits(self._settings, dynamic),
                marker_partition_count=self._settings.partitions,
                clock=SystemClock(),
                metrics=self._metrics.coordinator(coordinator),
                txn_timeout_ms_max=self._settings.txn_timeout_ms_max,
                broker_away_s_max=self._settings.broker_away_s_max,
            )

        agent = self._agent = CoordinatorAgent(cluster, make_driver, self.fail)
        self._metrics.watch_coordinators(
            lambda: {it: one.stats() for it, one in agent.drivers.items() if one.serving}
        )
        tasks = [
            self._task(dynamic.run(), "dynamic-settings"),
            self._task(ends.run(), "end-offsets"),
            self._task(buffered_writer.run(), "buffered-writer"),
            self._task(self._announce(agent), "announce"),
            self._task(self._run_apps(writers, cluster), "apps"),
        ]
        try:
            await self._stop.wait()
        finally:
            await agent.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(_stop(cluster), _stop(writers))
            await writer.close()

    def _settings_changed(self, dynamic: DynamicSettings) -> None:
        assert self._agent is not None
        limits = txn_log_limits(self._settings, dynamic)
        for driver in self._agent.drivers.values():
            driver.limits_changed(limits)

    async def _coordinators_serve(self) -> Finding:
        """Whether the group has assigned partitions, be it none, and those are recovered."""
        if self._stop.is_set():
            return Finding(passed=False, text="the worker is stopping")
        if self._agent is None or not self._agent.joined:
            return Finding(passed=False, text="the group has assigned none yet")
        drivers = self._agent.drivers
        recovering = sorted(it for it, driver in drivers.items() if not driver.serving)
        if recovering:
            return Finding(passed=False, text=f"recovering: {recovering}")
        return Finding(passed=True, text=f"serving: {sorted(drivers)}")

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

    async def _announce(self, agent: CoordinatorAgent) -> None:
        while True:
            drivers = agent.drivers
            if drivers and all(driver.serving for driver in drivers.values()):
                # What was loaded so far lives as long as the process. Left to the collector, it is
                # walked again and again under load, at 50 ms a time.
                gc.collect()
                gc.freeze()
                self._serving(sorted(drivers), self._web)
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


def txn_log_limits(settings: Settings, dynamic: DynamicSettings) -> BatchLimits:
    """Thresholds of the transaction log (A); a dynamic setting goes before a static one."""
    batching = dynamic.flag(TXN_LOG_BATCHING_ENABLED)
    return BatchLimits(
        records_max=settings.txn_log_batch_records_max,
        bytes_max=settings.txn_log_batch_bytes_max,
        delay_ms_max=settings.txn_log_batch_delay_ms_max,
        eager=settings.txn_log_flush_mode == "eager",
        batching=settings.txn_log_batching_enabled if batching is None else batching,
    )
