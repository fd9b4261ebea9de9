"""Who may see the console: everybody on loopback, else who has the token.

*Source*: RFC 6750 (bearer tokens), OWASP's advice on sessions. *Invariants*: a token is compared
in constant time, and is neither logged nor kept in an address: an address with a token is answered
with the address without it. The cookie is no token: it is good for this process only.
"""

import hashlib
import hmac
import ipaddress
import secrets
from pathlib import Path

from aiohttp import web
from yarl import URL

from stilltide.pipeline.errors import ConfigError

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

        A browser takes what follows two slashes, or a backslash, for the name of a host.
        """
        path = "/" + to.raw_path.lstrip("/\\")
        location = f"{path}?{to.raw_query_string}" if to.raw_query_string else path
        answer = web.Response(status=303, headers={"Location": location})
        answer.set_cookie(COOKIE, self._cookie(), httponly=True, samesite="Strict", path="/")
        return answer

    def _cookie(self) -> str:
        assert self._token is not None, "nobody is asked for a token"
        return hmac.new(self._session, self._token.encode(), hashlib.sha256).hexdigest()


def _is_same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
