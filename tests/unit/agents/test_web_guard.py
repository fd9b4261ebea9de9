"""The web site with visitors that are slow, many, or under a stranger's host name: real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import ClientSession
from prometheus_client import CollectorRegistry

from stilltide.pipeline.agents.probes import Probes
from stilltide.pipeline.agents.web_guard import WebAccess, WebLimits, is_allowed_host
from stilltide.pipeline.config.loading import load_settings
from tests.support.coordinator.worker_memory import until

HOST = "127.0.0.1"
PATIENCE_S = 30.0
TOKEN = "0123456789abcdef-token"  # noqa: S105 - of a site that lives as long as the test


@asynccontextmanager
async def site(
    access: WebAccess = WebAccess(),  # noqa: B008 - a tuple
    limits: WebLimits = WebLimits(),  # noqa: B008 - as above
) -> AsyncIterator[tuple[Probes, int]]:
    """A site and its port."""
    probes = Probes(CollectorRegistry(), {}, access=access, limits=limits)
    address = await probes.start(HOST, 0)
    try:
        yield probes, int(address.rpartition(":")[2])
    finally:
        await probes.close()


async def asked(port: int, request: str) -> str:
    """The bytes of the answer, as text, until the site closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request.encode())
        answer = (await reader.read()).decode()
        writer.close()
    return answer


def status(answer: str) -> int:
    """The status of an answer."""
    return int(answer.split(" ", 2)[1])


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the site ends the connection, in any way, without an answer."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


def drip(writer: asyncio.StreamWriter) -> None:
    """Sends a request's header a byte at a time, for as long as the connection lives."""
    loop = asyncio.get_running_loop()
    writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")

    def next_byte() -> None:
        if not writer.is_closing():
            writer.write(b"x")
            loop.call_later(0.02, next_byte)

    next_byte()


@pytest.mark.parametrize(
    "sent", ["", "GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n", "GET /livez HT"]
)
async def test_a_visitor_who_does_not_finish_a_request_is_closed(sent: str):
    """After `connection_s`, whether nothing was sent or half of a request."""
    async with site(limits=WebLimits(connection_s=0.3)) as (probes, port):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(sent.encode())
        assert await closed(reader)
        writer.close()
        assert probes.connection_count == 0


async def test_two_hundred_slow_visitors_keep_nobody_from_an_answer():
    """They hold no more than `connections_max`, end in time, and `/livez` answers meanwhile."""
    limits = WebLimits(connection_s=1.5, connections_max=20)
    async with site(limits=limits) as (probes, port), AsyncExitStack() as stack:
        readers: list[asyncio.StreamReader] = []
        for number in range(200):
            reader, writer = await asyncio.open_connection(HOST, port)
            stack.callback(writer.close)
            readers.append(reader)
            if number % 2:
                drip(writer)
            assert probes.connection_count <= limits.connections_max
            if number % 20 == 0:
                assert status(await asked(port, "GET /livez HTTP/1.0\r\n\r\n")) == 200
        assert all(await asyncio.gather(*map(closed, readers)))
        assert probes.connection_count == 0


async def test_a_visitor_who_does_not_read_the_answer_is_closed():
    """The buffer of an answer that nobody takes is given up in time, too."""
    async with site(limits=WebLimits(connection_s=0.5)) as (probes, port):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        await until(lambda: not probes.connection_count)
        writer.close()


async def test_an_answer_ends_its_connection():
    """Nobody holds a place between two requests."""
    async with site() as (_, port):
        answer = await asked(port, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(answer) == 200
        assert "connection: close" in answer.lower()


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:6066", 200),
        ("[::1]:6066", 200),
        ("10.1.2.3:6066", 200),  # the kubelet asks a pod at its address
        ("localhost:6066", 200),
        ("LOCALHOST.", 200),
        ("worker-a:6066", 200),  # Prometheus in a compose network
        ("worker-a.example.com", 421),
        ("evil.example:6066", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example", 421),
        ("worker-a@evil.example", 421),
        ("", 421),
    ],
)
@pytest.mark.parametrize("path", ["/livez", "/metrics", "/readyz"])
async def test_only_known_host_names_are_answered(host: str, code: int, path: str):
    """A page of a stranger asks under the stranger's name: 421 (DNS rebinding)."""
    async with site(WebAccess(["worker-?"])) as (_, port):
        answer = await asked(port, f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n")
        assert status(answer) == code


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ("GET /livez HTTP/1.1\r\n\r\n", 400),
        ("GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", 400),
        ("GET /livez HTTP/1.0\r\n\r\n", 200),  # health checks of containers
        ("GET /nothing HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        ("GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
    ],
)
async def test_a_request_names_one_host(request_: str, code: int):
    """None in HTTP/1.1, or two, is a bad request; HTTP/1.0, which no browser speaks, needs none."""
    async with site() as (_, port):
        answer = await asked(port, request_)
        assert status(answer) == code


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (None, 401),
        ("", 401),
        ("Bearer ", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer \u00e4\u00f6", 401),
    ],
)
async def test_metrics_ask_for_the_token(header: str | None, code: int):
    """`/metrics` alone: probes have no token."""
    headers = {} if header is None else {"Authorization": header}
    async with site(WebAccess(metrics_token=TOKEN)) as (_, port), ClientSession() as session:
        async with session.get(f"http://{HOST}:{port}/metrics", headers=headers) as answer:
            assert answer.status == code
            assert ("WWW-Authenticate" in answer.headers) == (code == 401)
            assert TOKEN not in await answer.text()
        for path in ("/livez", "/readyz"):
            async with session.get(f"http://{HOST}:{port}{path}") as answer:
                assert answer.status == 200


def test_access_is_that_of_the_settings():
    """Without settings: addresses and `localhost`, and no token."""
    assert WebAccess.of(load_settings()) == WebAccess([], None)
    settings = load_settings(web_allowed_hosts="a b-*", metrics_token=TOKEN)
    assert WebAccess.of(settings) == WebAccess(["a", "b-*"], TOKEN)


def test_a_star_allows_every_name():
    """For a site behind a proxy that checks names itself."""
    assert is_allowed_host("anything.example", ["*"])
    assert not is_allowed_host("any thing", ["*"])
