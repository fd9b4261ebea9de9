"""The web site of a command that runs until stopped: `/metrics`, `/livez` and `/readyz`.

*Invariants*: without `--web-port` nothing listens; without `web_host` the site is on loopback.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.agents.probes import Check, Probes, broker_check
from stilltide.pipeline.agents.web_guard import WebAccess
from stilltide.pipeline.config.settings import Settings


@asynccontextmanager
async def serving_site(
    settings: Settings,
    web_port: int | None,
    registry: CollectorRegistry,
    clusters: Mapping[str, Connector],
    checks: Mapping[str, Check],
) -> AsyncIterator[str | None]:
    """Serves the site during the block; yields its address, or None without a port.

    Each check of `/readyz` is reported under its name, so that a container that is not ready names
    the cluster that is away: a link checks both clusters, an indexer its broker.

    Args:
        settings: the process's settings, which name the host.
        web_port: port of the site; 0 takes a free one, None means no site.
        registry: the metrics of `/metrics`.
        clusters: clusters by name of check; a check passes if the cluster's brokers answer.
        checks: further checks by name.

    Raises:
        ConfigError: the port is taken.
    """
    if web_port is None:
        yield None
        return
    admins = {name: connector.admin() for name, connector in clusters.items()}
    brokers = {name: broker_check(admin) for name, admin in admins.items()}
    site = Probes(registry, brokers | dict(checks), access=WebAccess.of(settings))
    try:
        yield await site.start(settings.web_host, web_port)
    finally:
        await site.close()
        for admin in admins.values():
            await admin.close()
