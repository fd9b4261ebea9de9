"""What protects a process's web site from its visitors: time, number, host names and a token.

*Source*: RFC 9112 section 3.2 (a request has one `Host`), RFC 6750 (bearer tokens), RFC 9110
section 15.5.20 (421). A page of a stranger's site can make a browser ask an address behind the
firewall under the stranger's name (DNS rebinding): the `Host` of that request is the stranger's.

*Invariants*: every connection ends after `WebLimits.connection_s`, also one that sends or reads
slowly; there are never more than `WebLimits.connections_max`.
"""

import asyncio
import hmac
import ipaddress
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from stilltide.pipeline.config.settings import Settings

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/@\[\]]+))(?::\d{0,5})?")
_SCHEME = "bearer "


class WebLimits(NamedTuple):
    """How long a connection may live, and how many there may be.

    Attributes:
        connection_s: seconds from the start of a connection until it is closed, whatever happens
            on it; every answer ends its connection before that.
        connections_max: number of connections at which a new one closes the oldest.
    """

    connection_s: float = 15.0
    connections_max: int = 64


class WebAccess(NamedTuple):
    """Who may ask.

    Attributes:
        hosts: names or patterns (`worker-*`) that a `Host` may be, in addition to IP addresses and
            `localhost`.
        metrics_token: bearer token that `/metrics` asks for, None for no token.
    """

    hosts: Sequence[str] = ()
    metrics_token: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> "WebAccess":
        """What the settings say."""
        token = settings.metrics_token
        return cls(settings.allowed_hosts, token.get_secret_value() if token else None)


def guarded(access: WebAccess) -> Middleware:
    """The middleware that checks the host of every request, and ends each connection's answer."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = _refusal_of_host(request, access.hosts)
        try:
            answer = refused or await handler(request)
        except web.HTTPException as error:
            error.force_close()
            raise
        answer.force_close()
        return answer

    return check


def refusal_of_token(request: web.Request, access: WebAccess) -> web.Response | None:
    """The answer to a request without the token that is needed, None for one that may pass."""
    if access.metrics_token is None:
        return None
    given = request.headers.get("Authorization", "")
    is_bearer = given[: len(_SCHEME)].lower() == _SCHEME
    token = given[len(_SCHEME) :].strip() if is_bearer else ""
    # Constant time: the time of an answer says nothing about the token.
    if hmac.compare_digest(token.encode(errors="replace"), access.metrics_token.encode()):
        return None
    return web.Response(
        status=401, text="a bearer token is needed\n", headers={"WWW-Authenticate": "Bearer"}
    )


def is_allowed_host(host: str, hosts: Sequence[str]) -> bool:
    """Whether a `Host` is an IP address, `localhost`, or one of the names or patterns."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    text = match["v6"] or match["name"].lower().rstrip(".")
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text == "localhost" or any(fnmatchcase(text, each.lower()) for each in hosts)
    return True


def _refusal_of_host(request: web.Request, hosts: Sequence[str]) -> web.Response | None:
    given = request.headers.getall("Host", [])
    if not given and request.version < (1, 1):
        return None  # no browser asks without a host
    if len(given) != 1:
        return web.Response(status=400, text="a request names one host\n")
    if is_allowed_host(given[0], hosts):
        return None
    return web.Response(
        status=421, text="this host name is not one of the setting web_allowed_hosts\n"
    )


class Connections:
    """The open connections of a site, each with its end; makes the protocols of new ones.

    Args:
        make: makes what serves one connection.
        limits: the limits that are kept.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], limits: WebLimits) -> None:
        self._make = make
        self._limits = limits
        self._open: dict[_Connection, None] = {}

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def accept(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        return _Connection(self, self._make())

    def add(self, connection: "_Connection") -> asyncio.TimerHandle:
        """Keeps a new connection; the oldest one ends if there are too many."""
        if len(self._open) >= self._limits.connections_max:
            next(iter(self._open)).abort()
        self._open[connection] = None
        return asyncio.get_running_loop().call_later(self._limits.connection_s, connection.abort)

    def remove(self, connection: "_Connection") -> None:
        """Forgets a connection that has ended. Safe to call twice."""
        self._open.pop(connection, None)

    def abort(self) -> None:
        """Ends all of them."""
        for connection in list(self._open):
            connection.abort()


class _Connection(asyncio.Protocol):
    """Hands everything that happens on a connection to the protocol that serves it."""

    def __init__(self, all_of_them: Connections, serves: asyncio.Protocol) -> None:
        self._all = all_of_them
        self._serves = serves
        self._transport: asyncio.Transport | None = None
        self._end: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        self._all.remove(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._end = self._all.add(self)
        self._serves.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.remove(self)
        if self._end is not None:
            self._end.cancel()
        self._serves.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._serves.data_received(data)

    def eof_received(self) -> bool | None:
        return self._serves.eof_received()

    def pause_writing(self) -> None:
        self._serves.pause_writing()

    def resume_writing(self) -> None:
        self._serves.resume_writing()
