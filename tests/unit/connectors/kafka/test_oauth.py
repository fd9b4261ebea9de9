"""Tokens for the Python clients, from a server on loopback."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.kafka import oauth as module
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.oauth import OidcClient, TokenSource
from stilltide.connectors.kafka.raw.line import RawTokens, raw_options
from stilltide.connectors.kafka.security import java_options, oidc_client
from tests.support.processes.certificates import Authority
from tests.support.processes.oidc import CLIENT, SCOPE, SECRET, OidcServer

PATIENCE_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OidcServer]:
    """A server without TLS."""
    with OidcServer(tmp_path) as running:
        yield running


def client_of(
    server: OidcServer, *, secret: str = SECRET, ca_location: str | None = None
) -> OidcClient:
    """The client that the server knows, or nearly."""
    return OidcClient(server.url, CLIENT, secret, SCOPE, ca_location=ca_location)


async def test_a_token_is_fetched_once_for_all(server: OidcServer):
    """Threads and loops that ask at the same moment share a fetch, and its token afterwards."""
    source = TokenSource(client_of(server))
    server.delay.clear()
    asked = [asyncio.ensure_future(source.fresh()) for _ in range(5)]
    asked += [asyncio.ensure_future(asyncio.to_thread(source.token)) for _ in range(5)]
    await asyncio.sleep(0)
    server.delay.set()
    assert len(set(await asyncio.gather(*asked))) == 1
    await source.fresh()
    assert server.fetch_count == 1


async def test_the_event_loop_turns_while_a_token_is_fetched(server: OidcServer):
    """A server that does not answer holds up those who need the token, and nobody else."""
    source = TokenSource(client_of(server))
    server.delay.clear()
    asked = asyncio.ensure_future(source.fresh())
    turns = 0
    async with asyncio.timeout(PATIENCE_S):
        while turns < 100:
            turns += 1
            await asyncio.sleep(0)
    assert not asked.done()
    server.delay.set()
    assert await asked


def test_a_token_is_refreshed_before_it_expires(server: OidcServer):
    """Late in its life the old one is still given out, at once, and the next one is fetched."""
    server.life_s = 20.0
    source = TokenSource(client_of(server))
    first = source.token()
    held = source._token
    assert held is not None
    server.delay.clear()
    source._token = held._replace(refresh_s=time.monotonic())
    assert source.token() == first
    server.life_s = 3600.0
    server.delay.set()
    until_s = time.monotonic() + PATIENCE_S
    while (next_one := source.token()) == first and time.monotonic() < until_s:
        threading.Event().wait(0.01)
    assert next_one != first
    assert server.fetch_count == 2


def test_a_refresh_that_fails_leaves_the_token_that_still_lives(server: OidcServer):
    """And asks again after a pause, not with each call."""
    source = TokenSource(client_of(server))
    first = source.token()
    held = source._token
    assert held is not None
    source._token = held._replace(refresh_s=time.monotonic())
    server.answer = 503, b"", {}
    assert source.token() == first
    fetch = source._fetch
    assert fetch is not None
    assert isinstance(fetch.exception(PATIENCE_S), RetriableError)
    assert source.token() == first
    assert source._fetch is fetch


def test_an_expired_token_is_not_given_out(server: OidcServer):
    """Who needs one waits for the next, or gets the error of its fetch."""
    source = TokenSource(client_of(server))
    source.token()
    held = source._token
    assert held is not None
    source._token = held._replace(refresh_s=0, expires_s=0)
    server.answer = 503, b"", {}
    with pytest.raises(RetriableError, match="no token from"):
        source.token()
    server.answer = None
    assert source.token()


@pytest.mark.parametrize(
    ("answer", "kind", "named"),
    [
        ((401, b'{"error": "invalid_client"}', {}), FatalError, "HTTP status 401, invalid_client"),
        ((400, b"<html>", {}), FatalError, "HTTP status 400"),
        ((429, b"", {}), RetriableError, "HTTP status 429"),
        ((500, b"", {}), RetriableError, "HTTP status 500"),
        ((302, b"", {"Location": "http://127.0.0.1:1/"}), FatalError, "redirections"),
        ((200, b"", {}), FatalError, "without a usable access_token"),
        ((200, b"[]", {}), FatalError, "without a usable access_token"),
        ((200, b'{"access_token": 1, "expires_in": 1}', {}), FatalError, "without a usable"),
        ((200, b'{"access_token": "a\\u0001b", "expires_in": 9}', {}), FatalError, "usable"),
        ((200, b'{"access_token": "a.b.c"}', {}), FatalError, "how long the token lives"),
        ((200, b'{"access_token": "a", "expires_in": -1}', {}), FatalError, "how long"),
        ((200, b'{"access_token": "a", "expires_in": NaN}', {}), FatalError, "how long"),
        ((200, b" " * 300_000, {}), FatalError, "too long"),
    ],
)
def test_an_answer_that_is_no_token_is_a_typed_error(
    server: OidcServer,
    answer: tuple[int, bytes, dict[str, str]],
    kind: type[ConnectorError],
    named: str,
):
    """The error names the endpoint and the reason, and neither secret nor token."""
    server.answer = answer
    with pytest.raises(kind, match=named) as caught:
        TokenSource(client_of(server)).token()
    assert server.url in str(caught.value)
    assert SECRET not in str(caught.value)


def test_the_life_of_a_token_may_be_in_the_token_alone(server: OidcServer):
    """Without `expires_in` the claim `exp` counts."""
    server.answer = 200, b'{"access_token": "%s"}' % server.token().encode(), {}
    source = TokenSource(client_of(server))
    assert source.token()
    held = source._token
    assert held is not None
    assert 3000 < held.expires_s - time.monotonic() <= 3600


def test_a_wrong_secret_is_not_shown(server: OidcServer):
    """Not in the error, and not in the text of the client."""
    client = client_of(server, secret="wrong-one")  # noqa: S106 - a wrong one
    with pytest.raises(FatalError, match="refused the client") as caught:
        TokenSource(client).token()
    assert "wrong-one" not in f"{caught.value}{client!r}"


def test_a_fetch_ends_in_time(server: OidcServer, monkeypatch: pytest.MonkeyPatch):
    """Also if the endpoint takes the connection and stays silent."""
    monkeypatch.setattr(module, "FETCH_TIMEOUT_S", 0.3)
    server.delay.clear()
    with pytest.raises(RetriableError, match=r"no answer within 0\.3 s"):
        TokenSource(client_of(server)).token()


def test_the_authority_of_the_endpoint_is_checked(tmp_path: Path):
    """A certificate of an authority that is not trusted means no token; the setting names it."""
    authority = Authority(tmp_path)
    with OidcServer(tmp_path, authority.issue("issuer")) as server:
        assert TokenSource(client_of(server, ca_location=str(authority.ca))).token()
        with pytest.raises(RetriableError, match=r"https\.ca\.location"):
            TokenSource(client_of(server)).token()
        with pytest.raises(FatalError, match="authorities of the token endpoint"):
            TokenSource(client_of(server, ca_location=str(server.jwks))).token()


OPTIONS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "me",
    "sasl.oauthbearer.client.secret": 'a"b\\',
    "sasl.oauthbearer.token.endpoint.url": "https://issuer.example/token",
    "sasl.oauthbearer.scope": "kafka",
    "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-2",
    "https.ca.location": "/ca.pem",
}


def test_options_reach_every_client():
    """Librdkafka's names become a source of tokens for Python, and a login for Java."""
    client = oidc_client(OPTIONS)
    assert client is not None
    assert client.extensions == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    tokens = raw_options(KafkaConfig("h:1", extra=OPTIONS), "c")["sasl_oauth_token_provider"]
    assert isinstance(tokens, RawTokens)
    assert tokens.extensions() == client.extensions
    java = java_options(OPTIONS)
    assert java["sasl.oauthbearer.token.endpoint.url"] == "https://issuer.example/token"
    login = java["sasl.jaas.config"]
    assert 'clientId="me" clientSecret="a\\"b\\\\" scope="kafka"' in login
    assert 'extension_logicalCluster="lkc-1"' in login
    assert 'ssl.truststore.location="/ca.pem"' in login


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("sasl.oauthbearer.method", "default", "is 'default', not 'oidc'"),
        ("sasl.oauthbearer.client.id", "", "client.id is not set"),
        ("sasl.oauthbearer.client.secret", "", "client.secret is not set"),
        ("sasl.oauthbearer.token.endpoint.url", "", "endpoint.url is not set"),
    ],
)
def test_oauth_without_an_option_that_it_needs_is_refused(name: str, value: str, named: str):
    """By all clients, before any of them connects."""
    with pytest.raises(FatalError, match=named):
        oidc_client(OPTIONS | {name: value})
