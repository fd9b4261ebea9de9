"""The web site of a command that runs until stopped: `/metrics`, `/livez` and `/readyz`.

*Invariants*: without `--web-port` nothing listens; without `web_host` it is loopback that does.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.agents.probes import Check, Probes, broker_check
from stilltide.pipeline.config.settings import Settings


@asynccontextmanager
async def serving_site(
    settings: Settings,
    web_port: int | None,
    registry: CollectorRegistry,
    clusters: Mapping[str, Connector],
    checks: Mapping[str, Check],
) -> AsyncIterator[str | None]:
    """A site from entry to exit; its address, or None without a port.

    Args:
        settings: name the host.
        web_port: 0 takes a free one, None is no site.
        registry: what `/metrics` shows.
        clusters: each is a check of `/readyz` under its name, that its brokers answer.
        checks: the others.

    Raises:
        ConfigError: the port is taken.
    """
    if web_port is None:
        yield None
        return
    admins = {name: connector.admin() for name, connector in clusters.items()}
    brokers = {name: broker_check(admin) for name, admin in admins.items()}
    site = Probes(registry, brokers | dict(checks))
    try:
        yield await site.start(settings.web_host, web_port)
    finally:
        await site.close()
        for admin in admins.values():
            await admin.close()
