"""The web site of a command that runs until stopped: `/metrics`, `/livez` and `/readyz`.

*Invariants*: without `--web-port` nothing listens, but the clusters are watched all the same, since
the watches log that a cluster is away; without `web_host` the site is on loopback.

The wait of a command that follows, between two of its runs.

*Invariants*: the end of Spark's JVM ends the wait. Nothing else uses the JVM meanwhile: without
being asked it could be dead for days.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.cli.common.asking import on_stop
from stilltide.pipeline.cli.common.output import print_event, say
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatches, ProbeResult
from stilltide.pipeline.logging import hear_clients
from stilltide.pipeline.metrics.process import ClusterMetrics

if TYPE_CHECKING:
    from stilltide.pipeline.agents.probes import Check


@asynccontextmanager
async def serving_site(
    settings: Settings,
    web_port: int | None,
    registry: CollectorRegistry,
    clusters: Mapping[str, tuple[str, str, Connector]],
    checks: "Mapping[str, Check]",
) -> AsyncIterator[str | None]:
    """Watches clusters and serves the site during the block.

    Each check of `/readyz` is reported under its name, so that a container that is not ready names
    the cluster that is away: a link checks both clusters, an indexer its broker.

    Yields the address of the site, or None without a port.

    Args:
        settings: the process's settings, which name the host.
        web_port: port of the site; 0 takes a free one, None means no site.
        registry: the metrics of `/metrics`; those of the clusters are added.
        clusters: by name of check: name, address and connector of a cluster. A check passes if the
            cluster's brokers answer.
        checks: further checks by name.

    Raises:
        ConfigError: the port is taken.
    """
    # Commands that serve nothing do not wait for a web server's library.
    from stilltide.pipeline.agents.probes import Probes, watch_check  # noqa: PLC0415
    from stilltide.pipeline.agents.web_guard import WebAccess  # noqa: PLC0415

    hear_clients()
    watches = ClusterWatches()
    registry.register(ClusterMetrics(lambda: watches.watches))
    async with AsyncExitStack() as stack:
        answers = {
            check: watch_check(await stack.enter_async_context(watches.watching(*cluster)))
            for check, cluster in clusters.items()
        }
        if web_port is None:
            yield None
            return
        site = Probes(registry, answers | dict(checks), access=WebAccess.of(settings))
        stack.push_async_callback(site.close)
        yield await site.start(settings.web_host, web_port)


@dataclass(frozen=True)
class FollowPace:
    """How a command follows.

    Attributes:
        every_s: seconds from the end of a run to the begin of the next one.
        is_once: whether to end when there is nothing left to do.
        web_port: port of the site; None for no site.
    """

    every_s: float
    is_once: bool
    web_port: int | None


class FollowedWork(Protocol):
    """What a command does again and again."""

    @property
    def state(self) -> str | None:
        """What `/readyz` says of it; None before its first result."""
        ...

    def run(self, is_stopped: Callable[[], bool]) -> bool:
        """Runs once, on a thread; returns whether the next run has work at once."""
        ...


async def follow(
    name: str,
    work: FollowedWork,
    metrics: Collector,
    settings: Settings,
    *,
    pace: FollowPace,
    check: Callable[[], None],
) -> None:
    """Runs until SIGTERM or SIGINT, or once; a cluster that is away ends nothing after a result.

    Args:
        name: of the check of `/readyz`.
        work: what is run.
        metrics: of the work.
        settings: of the process.
        pace: when it is run.
        check: raises if Spark's JVM has ended; blocks.

    Raises:
        ConfigError: a port is taken.
        Others: what the first run raises, and later what does not pass.
    """
    stopped, problem = asyncio.Event(), "the first run has not ended"
    on_stop(stopped.set)

    async def ready() -> ProbeResult:
        return ProbeResult(passed=not problem, text=problem or work.state or "")

    registry = CollectorRegistry()
    registry.register(metrics)
    own = settings.cluster, settings.bootstrap_servers, KafkaConnector(settings.kafka)
    site = serving_site(settings, pace.web_port, registry, {"broker": own}, {name: ready})
    async with site as web:
        print_event({"event": "following", "web": web})
        while not stopped.is_set():
            goes_on = False
            try:
                goes_on = await asyncio.to_thread(work.run, stopped.is_set)
                problem = ""
            except RetriableError as error:
                if pace.is_once or work.state is None:
                    raise
                problem = str(error)
                say(f"the run failed, and is repeated: {error}")
            if pace.is_once and not goes_on:
                break
            if not goes_on:
                await until_next_run(stopped, pace.every_s, check)


_LOOK_S = 1.0
"""How often the JVM is asked for a sign of life."""


async def until_next_run(stopped: asyncio.Event, every_s: float, check: Callable[[], None]) -> None:
    """Waits for `every_s` seconds, or until the command is stopped.

    Args:
        stopped: set when the command shall end.
        every_s: seconds from the end of a run to the begin of the next one.
        check: raises if the JVM has ended; blocks.

    Raises:
        FatalError: the JVM has ended, and the command was not stopped.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(every_s):
            while not stopped.is_set():
                await _look(stopped, check)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await stopped.wait()


async def _look(stopped: asyncio.Event, check: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(check)
    except FatalError:
        # A supervisor may send SIGTERM to this process and to the JVM alike.
        if not stopped.is_set():
            raise
