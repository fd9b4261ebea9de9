"""The web server of the console: pages, their changes as server-sent events, the state as JSON.

*Source*: the HTML standard, section 9.2 (server-sent events); RFC 9110.

*Invariants*: nothing is written to a cluster, and no address is logged, since an address may bear a
token. Each answer says what a browser may load: the console's own style sheet and script only.

Who may see the console: everybody on loopback, else who has the token.

*Source*: RFC 6750 (bearer tokens), OWASP's advice on sessions. *Invariants*: a token is compared
in constant time, and is neither logged nor kept in an address: an address with a token is answered
with the address without it. The cookie is no token: it is good for this process only.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from stilltide.pipeline.agents.web_guard import Connections, WebAccess, WebLimits, guarded
from stilltide.pipeline.console.feed import Feed, Shot
from stilltide.pipeline.console.render import (
    GZIP_HEAD,
    HERE,
    PAGES,
    Events,
    PageLook,
    Renderer,
    query_of,
)
from stilltide.pipeline.core.status.asks import Answers, Ask
from stilltide.pipeline.core.status.plain import plain
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.logging import get_logger

COOKIE = "stilltide_console"
TOKEN_CHARS_MIN = 16
_SCHEME = "bearer "


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token_of(path: Path) -> str:
    """The token in a file, without the line's end.

    Raises:
        ConfigError: the file cannot be read, or its token is too short.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--token-file names {path}, which cannot be read",
            detail=error.strerror or "" if isinstance(error, OSError) else "it is not UTF-8 text",
            hint="put the file there, readable by this process's user, or name another",
        ) from error
    if len(token) < TOKEN_CHARS_MIN:
        raise ConfigError(
            f"the token in {path} is too short to be safe",
            detail=f"it has {len(token)} characters, and needs {TOKEN_CHARS_MIN}",
            hint=f"make one: openssl rand -hex 32 > {path}",
        )
    return token


def require_protection(host: str, token: str | None, *, behind_proxy: bool) -> None:
    """Refuses a console that strangers could read.

    Raises:
        ConfigError: the address is beyond loopback, and nothing asks who is there.
    """
    if is_loopback(host) or token is not None or behind_proxy:
        return
    raise ConfigError(
        f"the console would be open to everybody who reaches {host}",
        detail="its pages name topics, groups, clients and addresses, and it has no token",
        hint="leave --host out and put a TLS proxy that asks for a password in front of loopback;"
        " or give --token-file; or say --behind-proxy if only such a proxy reaches this port",
    )


class ViewerAccess:
    """Asks for the token.

    Args:
        token: the token; None: everybody may look.
    """

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._session = secrets.token_bytes(32)

    def may_look(self, request: web.Request) -> bool:
        """Whether the request bears the token, or a cookie that was given for it."""
        if self._token is None:
            return True
        given = request.headers.get("Authorization", "")
        if given[: len(_SCHEME)].lower() == _SCHEME:
            return self.is_token(given[len(_SCHEME) :].strip())
        return _is_same(request.cookies.get(COOKIE, ""), self._cookie())

    def is_token(self, given: str) -> bool:
        """Whether this is the token; compares in constant time."""
        return self._token is not None and _is_same(given, self._token)

    def let_in(self, to: URL) -> web.Response:
        """The answer to a request with the right token: a cookie, and where to go on this site.

        The place is told from where the request went, and the cookie is for there: a proxy may
        serve the console, or several, below paths of its own. A browser takes what follows two
        slashes, or a backslash, for the name of a host; nothing does behind a dot.
        """
        place = "./" + to.raw_path.rpartition("/")[2].lstrip("\\")
        location = f"{place}?{to.raw_query_string}" if to.raw_query_string else place
        answer = web.Response(status=303, headers={"Location": location})
        answer.set_cookie(COOKIE, self._cookie(), httponly=True, samesite="Strict", path="")
        return answer

    def _cookie(self) -> str:
        assert self._token is not None, "nobody is asked for a token"
        return hmac.new(self._session, self._token.encode(), hashlib.sha256).hexdigest()


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())


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
        text = json.dumps(plain(shot.status, shot.findings))
        answer = web.Response(text=text, content_type="application/json")
        answer.enable_compression()
        return answer

    async def _static(self, request: web.Request) -> web.Response:
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound
        answer = web.Response(body=file.body, content_type=file.content_type, charset="utf-8")
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
