"""Access tokens for the Kafka clients in pure Python; librdkafka and Java fetch theirs themselves.

*Source*: RFC 6749 section 4.4 (the grant of client credentials); KIP-768 and librdkafka's
`sasl.oauthbearer.method=oidc`, whose requests look like these. Client id and secret travel as HTTP
basic authentication, without the form encoding that RFC 6749 asks for, as with the other two.

*Invariants*: a token is fetched again after `REFRESH_SHARE` of its life, while the old one is still
given out; a fetch ends after `FETCH_TIMEOUT_S`, runs on a thread of its own and so never on an
event loop; neither secret nor token is in an error or a log line.

Refuses to follow a redirection, which would hand the secret to another host.
"""

import asyncio
import base64
import json
import math
import re
import ssl
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.schemas.retry import TOKEN

FETCH_TIMEOUT_S = 10.0
"""Longest time of a fetch, from the look-up of the host to the last byte of the answer."""

REFRESH_SHARE = 0.8
"""Share of a token's life after which the next token is fetched."""

_ANSWER_BYTES_MAX = 256 * 1024
_CHUNK_BYTES = 16 * 1024
_SHOWN_CHARS_MAX = 200
_CLIENT_ERROR, _SERVER_ERROR = 400, 500
_TOO_MANY = 429
_OK = 200
# A character outside of these could end the field of the SASL message.
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True)
class OidcClient:
    """A client of an authorization server.

    Attributes:
        endpoint: URL of the token endpoint.
        client_id, client_secret: the client's credentials.
        scope: the scope that is asked for, empty for none.
        extensions: SASL extensions that go to the broker with each token.
        ca_location: PEM file of the authorities that are trusted for the endpoint; None for those
            of the system.
    """

    endpoint: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    extensions: Mapping[str, str] = field(default_factory=dict[str, str])
    ca_location: str | None = None


class _Token(NamedTuple):
    value: str
    refresh_s: float
    expires_s: float


class TokenSource:
    """The current token of a client; may be used by any thread.

    Args:
        client: the client that tokens are fetched for.
    """

    def __init__(self, client: OidcClient) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._token: _Token | None = None
        self._fetch: Future[_Token] | None = None
        self._next_s = -math.inf

    def token(self) -> str:
        """A token that has not expired; waits for a fetch only if there is none.

        Raises:
            RetriableError: the endpoint does not answer, or answers that it cannot.
            FatalError: the endpoint refuses the client, or its answer is not a token.
        """
        with self._lock:
            now_s, token = time.monotonic(), self._token
            if token is not None and now_s < token.expires_s:
                if now_s >= max(token.refresh_s, self._next_s):
                    self._start()
                return token.value
            fetch = self._start()
        try:
            return fetch.result(FETCH_TIMEOUT_S + 1).value
        except TimeoutError:
            raise _silent(self.client, "no answer in time") from None

    async def fresh(self) -> str:
        """As `token`, without ever blocking the event loop."""
        token = self._token
        if token is not None and time.monotonic() < token.expires_s:
            return self.token()
        return await asyncio.to_thread(self.token)

    def _start(self) -> "Future[_Token]":
        """The fetch under way, or a new one; called under the lock."""
        if self._fetch is None or self._fetch.done():
            self._fetch = Future()
            # A daemon: a process that ends does not wait for an endpoint.
            threading.Thread(
                target=self._run, args=(self._fetch,), name="stilltide-token", daemon=True
            ).start()
        return self._fetch

    def _run(self, fetch: "Future[_Token]") -> None:
        try:
            token = asyncio.run(_fetched(self.client))
        except ConnectorError as error:
            with self._lock:
                self._next_s = time.monotonic() + TOKEN.wait_s()
            fetch.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - somebody waits for the future
            fetch.set_exception(error)
        else:
            with self._lock:
                self._token = token
            fetch.set_result(token)


async def _fetched(client: OidcClient) -> _Token:
    # Imported late: most processes have no OAuth, and the import takes a third of a second.
    import aiohttp  # noqa: PLC0415

    asked_s = time.monotonic()
    credentials = base64.b64encode(f"{client.client_id}:{client.client_secret}".encode()).decode()
    form = {"grant_type": "client_credentials"} | ({"scope": client.scope} if client.scope else {})
    headers = {"Authorization": f"Basic {credentials}", "Accept": "application/json"}
    timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(
                client.endpoint,
                data=form,
                headers=headers,
                allow_redirects=False,
                ssl=_tls(client) or True,
            ) as response,
        ):
            body = b""
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                body += chunk
                if len(body) > _ANSWER_BYTES_MAX:
                    raise _unusable(client, "the answer is too long")
            status = response.status
    except TimeoutError:
        raise _silent(client, f"no answer within {FETCH_TIMEOUT_S:g} s") from None
    except (aiohttp.ClientError, OSError) as error:
        raise _silent(client, str(error)) from error
    return _token_of(client, status, body, asked_s)


def _tls(client: OidcClient) -> ssl.SSLContext | None:
    if client.ca_location is None:
        return None
    try:
        return ssl.create_default_context(cafile=client.ca_location)
    except (OSError, ssl.SSLError) as error:
        raise FatalError(
            "the authorities of the token endpoint cannot be used",
            detail=str(error),
            hint="check the PEM file https.ca.location",
        ) from error


def _token_of(client: OidcClient, status: int, body: bytes, asked_s: float) -> _Token:
    try:
        decoded = json.loads(body)
    except ValueError:
        decoded = None
    answer = cast("dict[str, Any]", decoded) if isinstance(decoded, dict) else {}
    if status != _OK:
        raise _refused(client, status, answer)
    value = answer.get("access_token")
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise _unusable(client, "the answer is JSON without a usable access_token")
    life_s = answer.get("expires_in")
    if isinstance(life_s, str) and life_s.isdecimal():
        life_s = int(life_s)
    if not isinstance(life_s, int | float):
        life_s = _life_s(value)
    if life_s is None or not 0 < life_s < math.inf:
        raise _unusable(client, "the answer does not say how long the token lives")
    return _Token(value, asked_s + REFRESH_SHARE * life_s, asked_s + life_s)


def _life_s(token: str) -> float | None:
    """The life that is left to a token in JWT form, by its claim `exp`; None if it has none."""
    parts = token.split(".")
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"]) - time.time()
    except (IndexError, ValueError, TypeError, KeyError):
        return None


def _refused(client: OidcClient, status: int, answer: Mapping[str, Any]) -> ConnectorError:
    if status >= _SERVER_ERROR or status == _TOO_MANY:
        return _silent(client, f"HTTP status {status}")
    if status < _CLIENT_ERROR:
        return _unusable(client, f"HTTP status {status}; redirections are not followed")
    reason = str(answer.get("error", ""))[:_SHOWN_CHARS_MAX]
    return FatalError(
        f"the token endpoint {client.endpoint} refused the client",
        detail=f"HTTP status {status}{f', {reason}' if reason else ''}",
        hint="check sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret and "
        "sasl.oauthbearer.scope",
    )


def _silent(client: OidcClient, detail: str) -> RetriableError:
    return RetriableError(
        f"no token from {client.endpoint}",
        detail=detail,
        hint="check that the authorization server runs, that the URL is right "
        "(sasl.oauthbearer.token.endpoint.url), and https.ca.location",
    )


def _unusable(client: OidcClient, detail: str) -> FatalError:
    return FatalError(
        f"the answer of {client.endpoint} is not a token",
        detail=detail,
        hint="check sasl.oauthbearer.token.endpoint.url",
    )
