"""A process's web site: `/metrics`, `/livez` and `/readyz`, on its own loop.

*Source*: the probes of Kubernetes: 200 or 503, and a line for each check. A process whose loop
hangs does not answer, which fails the probe.

*Invariants*: a probe asks no broker: it shows what the watches of the clusters have found. Slow,
many or foreign visitors keep nobody else from an answer (`web_guard`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from stilltide.pipeline.agents.web_guard import (
    Connections,
    WebAccess,
    WebLimits,
    guarded,
    refusal_of_token,
)
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.shared.cluster_watch import ClusterWatch, ProbeResult
from stilltide.pipeline.errors import ConfigError

_SHUTDOWN_S = 1.0
_BACKLOG = 128

_Handler = Callable[[web.Request], Awaitable[web.Response]]


Check = Callable[[], Awaitable[ProbeResult]]


class Probes:
    """The web site; call `start` first and `close` last.

    Args:
        registry: the metrics that `/metrics` shows.
        ready: the checks of `/readyz`, by name.
        access: who may ask; by default an address of this site, without a token.
        limits: the limits of connections.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        ready: Mapping[str, Check],
        *,
        access: WebAccess = WebAccess(),  # noqa: B008 - a tuple
        limits: WebLimits = WebLimits(),  # noqa: B008 - as above
    ) -> None:
        self._registry = registry
        self._access = access
        self._limits = limits
        app = web.Application(middlewares=[guarded(access)])
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/livez", _probe({"loop": _loop_turns}))
        app.router.add_get("/readyz", _probe(ready))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections) if self._connections is not None else 0

    async def start(self, host: str, port: int) -> str:
        """Listens on the port, or on any free port for 0; returns the site's address.

        Raises:
            ConfigError: the port is taken, or the host is not an address of this machine.
        """
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(self._runner.server, self._limits)
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                self._connections.accept, host, port, backlog=_BACKLOG
            )
        except OSError as error:
            await self.close()
            raise ConfigError(
                f"web_port {port} of {host} cannot be listened on",
                detail=str(error),
                hint="set web_port to a port where no other process listens, or to 0 for any free "
                "port (--web-port, STILLTIDE_WEB_PORT); the host is the setting web_host",
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"

    async def close(self) -> None:
        """Stops listening. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        if self._connections is not None:
            self._connections.abort()

    async def _metrics(self, request: web.Request) -> web.Response:
        if refused := refusal_of_token(request, self._access):
            return refused
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})


def _probe(checks: Mapping[str, Check]) -> _Handler:
    async def handle(_request: web.Request) -> web.Response:
        findings = await asyncio.gather(*(check() for check in checks.values()))
        lines = [
            f"[{'+' if finding.passed else '-'}]{name} {finding.text}\n"
            for name, finding in zip(checks, findings, strict=True)
        ]
        passed = all(found.passed for found in findings)
        return web.Response(text="".join(lines), status=200 if passed else 503)

    return handle


async def _loop_turns() -> ProbeResult:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await asyncio.sleep(0)
    return ProbeResult(passed=True, text=f"turned in {(loop.time() - began_s) * 1000:.1f} ms")


def watch_check(watch: ClusterWatch) -> Check:
    """A check that the cluster answers; a cluster that is away is named, and since when."""

    async def check() -> ProbeResult:
        return await watch.finding()

    return check


def hindrance_check(hindrances: Hindrances) -> Check:
    """A check that answers arrive, and that no right is missing (C17)."""

    async def check() -> ProbeResult:
        return hindrances.finding()

    return check
