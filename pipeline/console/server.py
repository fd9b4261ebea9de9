"""The web server of the console: pages, their changes as server-sent events, the state as JSON.

*Source*: the HTML standard, section 9.2 (server-sent events); RFC 9110.

*Invariants*: nothing is written to a cluster, and no address is logged, since an address may bear a
token. Each answer says what a browser may load: the console's own style sheet and script only.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler

from stilltide.pipeline.agents.web_guard import Connections, WebAccess, WebLimits, guarded
from stilltide.pipeline.console.access import ViewerAccess
from stilltide.pipeline.console.events import GZIP_HEAD, Events
from stilltide.pipeline.console.feed import Feed, Shot
from stilltide.pipeline.console.render import HERE, PAGES, PageLook, Renderer, query_of
from stilltide.pipeline.core.status.asks import Answers, Ask
from stilltide.pipeline.core.status.plain import plain
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.logging import get_logger

_log = get_logger(__name__)

LIMITS = WebLimits(connection_s=600.0, connections_max=256)
"""A stream of events ends after ten minutes, and the browser opens the next one."""

_SHUTDOWN_S = 1.0
_BACKLOG = 128
_FORM_BYTES_MAX = 4096

FIRST_S = 0.7
"""Longest wait of a page for what is read for it only; an event brings what takes longer."""

NEXT_S = 0.5
"""Longest wait of an event for the same."""

Answering = Callable[[Sequence[Ask], float], Awaitable[Answers]]
"""Answers questions within so many seconds, as far as the answers are known then."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self';"
    " connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PROBES = ("/livez", "/readyz")
_OPEN = frozenset({*_PROBES, "/door"})
"""What nobody needs the token for."""

_FILES = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


class _File(NamedTuple):
    """A file that never changes while the process runs."""

    body: bytes
    content_type: str


class ConsoleServer:
    """Serves the console between `start` and `close`.

    Args:
        feed: gives the states; the caller runs it.
        answering: answers what is asked for one page only.
        access: asks for the token.
        hosts: who may be named as the host, in addition to addresses.
        limits: the limits of connections.
    """

    def __init__(
        self,
        feed: Feed,
        answering: Answering,
        access: ViewerAccess,
        *,
        hosts: WebAccess,
        limits: WebLimits = LIMITS,
    ) -> None:
        self._feed = feed
        self._answering = answering
        self._access = access
        self._limits = limits
        self._renderer = Renderer()
        self._body_events = Events(self._renderer)
        self._files = {
            name: _File((HERE / "static" / name).read_bytes(), kind)
            for name, kind in _FILES.items()
        }
        middlewares = [guarded(hosts), _answered, self._asked]
        app = web.Application(middlewares=middlewares, client_max_size=_FORM_BYTES_MAX)
        app.on_response_prepare.append(_headed)
        app.router.add_get("/", self._page_of("overview"))
        for name in PAGES:
            app.router.add_get(f"/{name}", self._page_of(name))
        app.router.add_get("/events/{name}", self._events)
        for probe in _PROBES:
            app.router.add_get(probe, _probed)
        app.router.add_get("/status.json", self._status)
        app.router.add_get("/static/{name}", self._static)
        app.router.add_post("/door", self._door)
        self._runner = web.AppRunner(
            app, access_log=None, logger=_mute(), shutdown_timeout=_SHUTDOWN_S
        )
        self._server: asyncio.Server | None = None
        self._connections: Connections | None = None

    async def start(self, host: str, port: int) -> str:
        """Listens on the port, or on any free port for 0; returns the console's address.

        Raises:
            ConfigError: the port is taken, or the host is not an address of this machine.
        """
        await self._runner.setup()
        assert self._runner.server is not None
        self._connections = Connections(self._runner.server, self._limits)
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connections.accept, host, port, backlog=_BACKLOG
            )
        except OSError as error:
            await self.close()
            raise ConfigError(
                f"port {port} of {host} cannot be listened on",
                detail=str(error),
                hint="give --port a port where no other process listens, or 0 for any free port",
            ) from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"http://[{host}]:{bound}/" if ":" in host else f"http://{host}:{bound}/"

    async def close(self) -> None:
        """Stops listening, and ends every connection. Safe to call twice."""
        if self._server is not None:
            self._server.close()
        if self._connections is not None:
            self._connections.abort()
        await self._runner.cleanup()

    @web.middleware
    async def _asked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets those in who may look; an address with the token leads to the one without it."""
        given = request.query.get("token")
        if given is not None and self._access.is_token(given):
            return self._access.let_in(request.rel_url.without_query_params("token"))
        is_open = request.path.startswith("/static/") or request.path in _OPEN
        if is_open or self._access.may_look(request):
            return await handler(request)
        return self._refused(is_wrong=given is not None)

    def _refused(self, *, is_wrong: bool) -> web.Response:
        return web.Response(
            status=401,
            text=self._renderer.door(is_wrong=is_wrong),
            content_type="text/html",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def _page_of(self, name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            shot = await self._feed.now()
            look = await self._look(name, request, shot, FIRST_S)
            text = self._renderer.page(look, shot)
            answer = web.Response(text=text, content_type="text/html")
            answer.enable_compression()
            return answer

        return handle

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """The body of a page, again and again, until the viewer has gone."""
        name = request.match_info["name"]
        if name not in PAGES:
            raise web.HTTPNotFound
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        if request.method == "HEAD":
            return web.Response(headers=answer.headers)
        is_packed = "gzip" in request.headers.get("Accept-Encoding", "")
        if is_packed:
            answer.headers["Content-Encoding"] = "gzip"
        await answer.prepare(request)
        if is_packed:
            await answer.write(GZIP_HEAD)
        event = self._body_events.packed if is_packed else self._body_events.plain
        shot = await self._feed.now()
        while True:
            look = await self._look(name, request, shot, NEXT_S)
            await answer.write(event(look, shot))
            shot = await self._feed.after(shot.number)

    async def _look(
        self, name: str, request: web.Request, shot: Shot, patience_s: float
    ) -> PageLook:
        """What a request looks at; reads what no viewer has read lately."""
        query = query_of(name, request.query)
        asks = PAGES[name].asks(shot.status, query)
        return PageLook(name, query, await self._answering(asks, patience_s) if asks else {})

    async def _status(self, _request: web.Request) -> web.Response:
        shot = await self._feed.now()
        text = json.dumps(plain(shot.status, shot.found))
        answer = web.Response(text=text, content_type="application/json")
        answer.enable_compression()
        return answer

    async def _static(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        answer = web.Response(body=found.body, content_type=found.content_type, charset="utf-8")
        answer.enable_compression()
        return answer

    async def _door(self, request: web.Request) -> web.StreamResponse:
        """Takes the token from the form."""
        try:
            given = (await request.post()).get("token", "")
        except (ValueError, LookupError, AssertionError, RuntimeError, web.RequestPayloadError):
            # All are aiohttp's.
            return web.Response(status=400, text="this is not the form of the door\n")
        if isinstance(given, str) and self._access.is_token(given.strip()):
            return self._access.let_in(request.rel_url.with_path("/"))
        return self._refused(is_wrong=True)


async def _probed(_request: web.Request) -> web.Response:
    """Serving is all that the console needs: a cluster that is away is what its pages show."""
    return web.Response(text="[+]console serves\n")


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers with an error page if ours fails; the log has the path without its query."""
    try:
        return await handler(request)
    except (web.HTTPException, ConnectionResetError, asyncio.CancelledError):
        raise
    except Exception as error:  # noqa: BLE001 - any failure of a page is told and logged
        _log.error("console_page_failed", path=request.path, error=repr(error))
        return web.Response(status=500, text="this page has failed; the log says why\n")


async def _headed(_request: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(HEADERS)
    answer.headers["Cache-Control"] = "no-store"
    answer.headers.pop("Server", None)  # names versions of libraries


def _mute() -> logging.Logger:
    """A logger that says nothing: aiohttp's lines quote requests, which may bear a token."""
    logger = logging.getLogger(f"{__name__}.aiohttp")
    logger.disabled = True
    return logger
