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
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatches
from stilltide.pipeline.logging import hear_clients
from stilltide.pipeline.metrics.clusters import ClusterMetrics

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
