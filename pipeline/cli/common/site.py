"""The web site of a command that runs until stopped: `/metrics`, `/livez` and `/readyz`.

*Invariants*: without `--web-port` nothing listens, but the clusters are watched all the same, since
the watches log that a cluster is away; without `web_host` the site is on loopback.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from prometheus_client import CollectorRegistry

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.agents.probes import Check, Probes, watch_check
from stilltide.pipeline.agents.web_guard import WebAccess
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatches
from stilltide.pipeline.logging import hear_clients
from stilltide.pipeline.metrics.clusters import ClusterMetrics


@asynccontextmanager
async def serving_site(
    settings: Settings,
    web_port: int | None,
    registry: CollectorRegistry,
    clusters: Mapping[str, tuple[str, str, Connector]],
    checks: Mapping[str, Check],
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
