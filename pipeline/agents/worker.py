"""One worker process: both Faust Apps, the owners, and their shared dependencies.

*Source*: docs/internals/kafka-clients.md, Faust and aiokafka.
"""

import asyncio
import signal
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import faust
from prometheus_client import CollectorRegistry, disable_created_metrics

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.ports.readers import BatchReader
from stilltide.pipeline.agents.apps import (
    BufferedWriter,
    cluster_app,
    follow,
    named,
    worker_group,
    worker_options,
    writer_app,
)
from stilltide.pipeline.agents.deciders import resolve_prepared
from stilltide.pipeline.agents.links import (
    ended_finding,
    link_metrics,
    links_runtime,
    publishes_finding,
    publishes_runtime,
    refusals,
)
from stilltide.pipeline.agents.probes import (
    Check,
    Probes,
    hindrance_check,
    watch_check,
)
from stilltide.pipeline.agents.web_guard import WebAccess
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.links.link import LinkOwner
from stilltide.pipeline.drivers.service.ended import OwnerEnd, reported_ends
from stilltide.pipeline.drivers.service.hindrances import Hindrances, RightsWatch
from stilltide.pipeline.drivers.service.own.direct_lines import LineServer
from stilltide.pipeline.drivers.service.own.watched_writer import explained_by
from stilltide.pipeline.drivers.shared.cluster_watch import (
    ClusterWatch,
    ClusterWatches,
    ProbeResult,
)
from stilltide.pipeline.drivers.shared.dynamic_settings import DynamicSettings
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import foreign_records
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.worker.deps import WorkerDeps, make_topics, open_deps
from stilltide.pipeline.drivers.worker.owners import Owners
from stilltide.pipeline.drivers.worker.runtime import Runtime
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.interpreter import tune
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.metrics.process import (
    ClusterMetrics,
    EndedMetrics,
    HindranceMetrics,
    LineMetrics,
)
from stilltide.pipeline.metrics.worker import WorkerMetrics
from stilltide.schemas.coordinator.transactions import ReportedEnd
from stilltide.schemas.topics import system_topics

log = get_logger(__name__)

SERVING_POLL_S = 0.05
STOP_TIMEOUT_S = 5.0
STOP_AWAY_S = 0.5
"""Longest wait for an App or a writer to stop; one whose cluster is away neither leaves its group
nor delivers its records."""

FETCH_WAIT_MS = 250
"""Of a worker's readers, most of which rest most of the time: fewer fetches than by default."""

T = TypeVar("T")


class Worker:
    """Runs until stopped or until a part of it fails.

    Args:
        settings: settings of this worker.
        serving: called once when every assigned coordinator serves, with the coordinators' numbers
            and the address of the web site.
    """

    def __init__(self, settings: Settings, serving: Callable[[list[int], str], None]) -> None:
        self._settings = settings
        self._serving = serving
        self._metrics = WorkerMetrics(settings.cluster, CollectorRegistry())
        self._watches = ClusterWatches()
        self._owners: Owners | None = None
        self._links: Runtime[str, LinkOwner] | None = None
        self._publishes: Runtime[str, LinkOwner] | None = None
        self._hindrances = Hindrances(lambda: _is_away(self._watches, settings.cluster))
        self._web = ""
        self._lines = line_server(settings)
        self._stop = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Serves until SIGTERM or SIGINT.

        Raises:
            RetriableError, UnavailableError: the cluster could not be reached for
                `broker_away_s_max` at the start; the error names the address.
            FatalError: a system topic has wrong configs or a wrong partition count.
            StilltideError: every owner that is assigned to this worker has ended by an error (B8).
            CoordinatorCountError: the cluster has more coordinators than the settings say (C14).
            ConfigError: the port of the web site is taken, or system topics would have fewer
                replicas than must be in sync.
        """
        tune()
        disable_created_metrics()  # their time stamps would double the samples
        settings = self._settings
        connector = KafkaConnector(replace(settings.kafka, fetch_wait_ms=FETCH_WAIT_MS))
        admin = connector.admin()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        foreign_records(connector).counter = self._metrics.foreign_records
        dynamic = DynamicSettings(connector, patience_s=settings.broker_away_s_max)
        batches = connector.batch_reader("worker")
        own = settings.cluster, settings.bootstrap_servers, connector
        async with AsyncExitStack() as stack:
            stack.push_async_callback(admin.close)
            stack.push_async_callback(dynamic.close)
            stack.push_async_callback(batches.close)
            watch = await stack.enter_async_context(self._watches.watching(*own))
            probes = self._probes(watch)
            stack.push_async_callback(probes.close)
            self._web = await probes.start(settings.web_host, settings.web_port)
            log.info("web_listening", address=self._web)
            await take_lines(settings, self._lines, self._metrics.registry)
            contact = self._first_contact(admin, dynamic)
            if await self._unless_stopped(contact):
                prefix = "stilltide-worker-"
                data_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))
                await self._serve(connector, batches, admin, dynamic, Path(data_dir))
        if self._failure is not None:
            raise self._failure

    async def _first_contact(self, admin: LogAdmin, dynamic: DynamicSettings) -> bool:
        """Makes the system topics or adds coordinators (C14), and reads the dynamic settings.

        A cluster that has answered here is waited for without a limit later, since its address is
        right (B9).
        """
        settings = self._settings
        outages = OutageGuard(admin, timeout_s=settings.broker_away_s_max, awaits_contact=True)
        await make_topics(admin, outages, worker_options(settings))
        await dynamic.open()
        return True

    async def _unless_stopped(self, step: Coroutine[Any, Any, T]) -> T | None:
        """The result of a step that may wait for the cluster; None: the worker was stopped."""
        running = asyncio.create_task(step)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([running, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                return None
            return await running
        finally:
            await cancelled(running, stopped)

    def _probes(self, watch: ClusterWatch) -> Probes:
        """The web site, with the check of the own cluster and those of everything that is run."""
        registry = self._metrics.registry
        registry.register(ClusterMetrics(lambda: self._watches.watches))
        registry.register(EndedMetrics(self._settings.cluster, self._ends))
        registry.register(HindranceMetrics(self._settings.cluster, self._hindrances))
        ready: dict[str, Check] = {"broker": watch_check(watch), "partitions": self._ready}
        ready["work"] = hindrance_check(self._hindrances)
        if self._settings.replicate_from:
            ready["links"] = self._links_ready
        if self._settings.publishes:
            ready["publishes"] = lambda: publishes_finding(self._publishes)
        return Probes(registry, ready, access=WebAccess.of(self._settings))

    def _ends(self) -> Mapping[str, Mapping[str, OwnerEnd]]:
        """The owners and links that have ended by an error, by kind and name."""
        ends = {} if self._owners is None else dict(self._owners.ends)
        for runtime in (self._links, self._publishes):
            if runtime is not None:
                ends[runtime.placement.name] = runtime.ends
        return ends

    async def _links_ready(self) -> ProbeResult:
        """Whether the sources of the links answer, and no link has ended by an error."""
        sources: list[str] = []
        watches = self._watches.watches
        for name in sorted(watches.keys() - {self._settings.cluster}):
            finding = await watches[name].finding()
            if not finding.passed:
                return finding
            sources.append(name)
        ended = ended_finding(self._links, "the link from ")
        text = f"copies from {', '.join(sources) or 'none here'}{refusals(self._links)}"
        return ended or ProbeResult(passed=True, text=text)

    def fail(self, error: BaseException) -> None:
        """Stops the worker, and has `run` raise `error`."""
        if self._failure is None:
            self._failure = named(error, self._settings.kafka, worker_group(self._settings))
        self._stop.set()

    async def _serve(
        self,
        connector: KafkaConnector,
        batches: BatchReader,
        admin: LogAdmin,
        dynamic: DynamicSettings,
        data_dir: Path,
    ) -> None:
        settings = self._settings
        writers = writer_app(settings, data_dir)
        cluster = cluster_app(settings, data_dir)
        hindrances = self._hindrances
        deps = await self._unless_stopped(
            open_deps(
                connector,
                admin,
                worker_options(settings),
                entries=BufferedWriter(writers),
                dynamic=dynamic,
                metrics=self._metrics,
                hindrances=hindrances,
                lines=self._lines,
                batches=batches,
                ended_owners=lambda: _told(self._ends(), hindrances, connector.clock.now_ms()),
            )
        )
        if deps is None:
            return
        joins = partial(follow, cluster)
        owners = self._owners = Owners(joins, deps, self.fail)
        links = self._links = links_runtime(settings, connector, self._watches, hindrances)
        publishes = self._publishes = publishes_runtime(settings, connector, hindrances)
        joins(links)
        joins(publishes)
        self._metrics.registry.register(link_metrics(settings, [links, publishes]))
        tasks = self._start(connector, deps, owners, writers, cluster)
        try:
            await self._stop.wait()
        finally:
            await asyncio.gather(self._lines.close(), owners.stop(), links.stop(), publishes.stop())
            await cancelled(*tasks)
            within_s = self._stop_within_s()
            await asyncio.gather(_stop(cluster, within_s), _stop(writers, within_s))
            await deps.close(within_s)

    def _stop_within_s(self) -> float:
        return STOP_AWAY_S if _is_away(self._watches, self._settings.cluster) else STOP_TIMEOUT_S

    def _start(
        self,
        connector: KafkaConnector,
        deps: WorkerDeps,
        owners: Owners,
        writers: faust.App,
        cluster: faust.App,
    ) -> list[asyncio.Task[None]]:
        """Starts everything that runs until the worker ends."""
        self._watches.watches[self._settings.cluster].back = owners.retry_now
        return [
            self._task(self._rights_watch(connector).run(), "rights"),
            self._task(_watch_silence(self._hindrances, connector, deps.admin), "silence"),
            *(self._task(work, name) for name, work in owners.work().items()),
            self._task(self._announce(owners), "announce"),
            self._task(
                resolve_prepared(self._settings, connector, owners.coordinators.owners), "deciders"
            ),
            self._task(self._run_apps(writers, cluster), "apps"),
        ]

    def _rights_watch(self, connector: KafkaConnector) -> RightsWatch:
        specs = system_topics(coordinators=1, partitions=1)
        group = worker_group(self._settings)
        return RightsWatch(
            connector.rights(),
            self._hindrances,
            [it.name for it in specs],
            group,
            unseen=lambda: self._owners.compacted.missing if self._owners else (),
        )

    async def _ready(self) -> ProbeResult:
        """Whether every partition that is assigned to this worker is recovered."""
        if self._stop.is_set():
            return ProbeResult(passed=False, text="the worker is stopping")
        if self._owners is None:
            return ProbeResult(passed=False, text="the worker is starting")
        finding = self._owners.finding()
        policies = self._owners.compacted
        if finding.passed and not policies.looked:
            return ProbeResult(passed=False, text="looking at the policies of topics")
        if finding.passed and policies.missing:  # C18: an upgrade stops here
            return ProbeResult(passed=False, text=policies.missing[0].primary)
        return finding

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Runs `work` as a task; an error of the task ends the worker."""
        task = asyncio.create_task(work, name=name)

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                self.fail(error)

        task.add_done_callback(ended)
        return task

    async def _run_apps(self, *apps: faust.App) -> None:
        """Starts the Apps; an App that stops by itself has crashed, and ends the worker."""
        for app in apps:
            app.finalize()
            await app.maybe_start()
        await asyncio.gather(*map(self._watch, apps))

    async def _watch(self, app: faust.App) -> None:
        await app.wait_until_stopped()
        self.fail(app.crash_reason or RuntimeError(f"{app.conf.id} stopped"))

    async def _announce(self, owners: Owners) -> None:
        while True:
            if owners.serving:
                break
            await asyncio.sleep(SERVING_POLL_S)
        tune()  # again: the recovered state is in memory now
        self._serving(sorted(owners.coordinators.owners), self._web)


async def _watch_silence(
    hindrances: Hindrances, connector: KafkaConnector, admin: LogAdmin
) -> None:
    """Explains why nothing is heard of writes (C17), until cancelled."""
    async with closing(connector.topic_admin()) as topics:
        await hindrances.run(explained_by(topics, admin))


def _told(
    ends: Mapping[str, Mapping[str, OwnerEnd]], hindrances: Hindrances, now_ms: int
) -> tuple[ReportedEnd, ...]:
    """What operators are told of: owners that have ended (B8), and what hinders others (C17)."""
    return (*reported_ends(ends, now_ms), *hindrances.reported(now_ms))


def _is_away(watches: ClusterWatches, cluster: str) -> bool:
    """Whether the worker's own cluster did not answer the last question."""
    watch = watches.watches.get(cluster)
    return watch is not None and not watch.answers


async def _stop(app: faust.App, within_s: float) -> None:
    """Stops an App; gives up after a while, since its consumer waits for a broker that is away."""
    try:
        async with asyncio.timeout(within_s):
            await app.stop()
    except TimeoutError:
        log.warning("app_not_stopped", app=app.conf.id, waited_s=within_s)


def line_server(settings: Settings) -> LineServer:
    """The server of direct lines, not started yet."""
    advertised = settings.line_advertised or settings.line_host
    return LineServer(settings.line_host, settings.line_port, advertised=advertised)


async def take_lines(settings: Settings, lines: LineServer, registry: CollectorRegistry) -> None:
    """Begins to listen, if the settings say where.

    Raises:
        ConfigError: the address cannot be bound.
    """
    registry.register(LineMetrics(settings.cluster, lines))
    try:
        address = await lines.start()
    except OSError as error:
        raise ConfigError(
            f"direct lines cannot listen on {settings.line_host}:{settings.line_port}",
            detail=str(error),
            hint="set line_host to an address of this machine, or line_port to a free port",
        ) from error
    if address:
        log.info("lines_listening", address=address)
