"""The console's web server: who may look, what is sent, what is never said."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from stilltide.pipeline.console.render import PAGES
from stilltide.pipeline.console.server import COOKIE, is_loopback, require_protection, token_of
from stilltide.pipeline.errors import ConfigError
from tests.support.console.served import Served, served
from tests.support.console.states import CLUSTER_AWAY
from tests.support.status.samples import WELL

TOKEN = "d7c1f0a35c8848d2b6f1"  # noqa: S105 - of tests


@pytest.fixture
async def viewer() -> AsyncIterator[aiohttp.ClientSession]:
    """A browser that follows no redirect by itself, and keeps cookies of addresses."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


@pytest.fixture
async def open_console() -> AsyncIterator[Served]:
    """A console without a token."""
    async with served(WELL) as console:
        yield console


@pytest.fixture
async def console() -> AsyncIterator[Served]:
    """A console with a token."""
    async with served(WELL, token=TOKEN) as console:
        yield console


@pytest.mark.parametrize("path", ["", *PAGES, "status.json", "static/console.css", "missing"])
async def test_every_answer_limits_what_a_browser_does(
    open_console: Served, viewer: aiohttp.ClientSession, path: str
):
    """No script of others, no frame, no address in a referrer, nothing kept in a cache."""
    async with viewer.get(open_console.url + path) as answer:
        assert answer.status == (404 if path == "missing" else 200)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert "Server" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_nothing_can_be_changed(
    open_console: Served, viewer: aiohttp.ClientSession, method: str
):
    """The pages only read."""
    async with viewer.request(method, open_console.url + "transactions") as answer:
        assert answer.status == 405


async def test_a_foreign_host_name_is_refused(open_console: Served, viewer: aiohttp.ClientSession):
    """A page of a stranger that leads a browser here under its own name gets nothing."""
    async with viewer.get(open_console.url, headers={"Host": "evil.example"}) as answer:
        assert answer.status == 421


async def test_events_are_the_body_of_the_page(open_console: Served, viewer: aiohttp.ClientSession):
    """A change of the state comes to a page that is open."""
    async with viewer.get(open_console.url + "events/overview") as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Content-Encoding"] == "gzip"
        assert b"nothing needs a person" in await event(answer)
        open_console.status = CLUSTER_AWAY
        while b"1 finding needs a person" not in (said := await event(answer)):
            """States that were collected before the change come first."""
        assert b"away: b" in said


async def event(answer: aiohttp.ClientResponse) -> bytes:
    """The next event of a stream."""
    async with asyncio.timeout(120):
        return await answer.content.readuntil(b"\n\n")


async def test_a_viewer_without_gzip_gets_plain_events(open_console: Served):
    """Such as a command line."""
    headers = {"Accept-Encoding": "identity"}
    async with (
        aiohttp.ClientSession(headers=headers) as viewer,
        viewer.get(open_console.url + "events/audits") as answer,
    ):
        assert "Content-Encoding" not in answer.headers
        assert (await event(answer)).startswith(b"data: ")


async def test_many_viewers_cost_one_collection(
    viewer: aiohttp.ClientSession,
):
    """Twenty streams get the same state."""
    async with served(WELL, every_s=3600) as console:
        answers = [await viewer.get(console.url + "events/groups") for _ in range(20)]
        assert len({await event(it) for it in answers}) == 1
        assert console.collected == 1
        for answer in answers:
            answer.close()


async def test_without_the_token_nobody_looks(console: Served, viewer: aiohttp.ClientSession):
    """No page, no stream, no figure; a form asks for the token."""
    for path in ("", *PAGES, "events/overview", "status.json"):
        async with viewer.get(console.url + path) as answer:
            assert answer.status == 401
            said = await answer.text()
            assert "orders" not in said
            assert 'type="password"' in said


@pytest.mark.parametrize("path", ["livez", "readyz"])
async def test_probes_need_no_token(console: Served, viewer: aiohttp.ClientSession, path: str):
    """They say nothing about clusters, and ask none."""
    async with viewer.get(console.url + path) as answer:
        assert (answer.status, await answer.text()) == (200, "[+]console serves\n")
    assert console.collected == 0


async def test_the_token_in_a_header(console: Served, viewer: aiohttp.ClientSession):
    """What programs send."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with viewer.get(console.url + "status.json", headers=headers) as answer:
        assert answer.status == 200
        assert (await answer.json())["needs_person"] is False
    headers = {"Authorization": f"Bearer {TOKEN}x"}
    async with viewer.get(console.url + "status.json", headers=headers) as answer:
        assert answer.status == 401


async def test_the_token_in_a_form(console: Served, viewer: aiohttp.ClientSession):
    """A person types the token once; the cookie is not the token, and no script reads it."""
    async with viewer.post(console.url + "door", data={"token": "wrong" * 5}) as answer:
        assert answer.status == 401
        assert "This is not the token" in await answer.text()
    async with viewer.post(
        console.url + "door", data={"token": TOKEN}, allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "./")
        cookie = answer.headers["Set-Cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    async with viewer.get(console.url + "groups") as answer:
        assert answer.status == 200


async def test_the_token_in_an_address_leads_to_the_address_without_it(
    console: Served, viewer: aiohttp.ClientSession
):
    """So that neither history nor bookmark has the token."""
    async with viewer.get(console.url + f"groups?token={TOKEN}") as answer:
        assert answer.status == 200
        assert answer.url == URL(console.url + "groups")
    assert [it.key for it in viewer.cookie_jar] == [COOKIE]


async def test_a_token_is_never_logged(console: Served, caplog: pytest.LogCaptureFixture):
    """Neither of a request that is answered, nor of one that is not even HTTP."""
    caplog.set_level(logging.DEBUG)
    url = URL(console.url)
    for line in (
        f"GET /?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /missing?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        f"GET /?token={TOKEN} HTTP/9.9 and more\r\n\r\n",
        f"\x00\x01 token={TOKEN}\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(line.encode())
        async with asyncio.timeout(120):
            assert await reader.read()
        writer.close()
    assert TOKEN not in caplog.text
    assert "aiohttp" not in caplog.text


def test_beyond_loopback_a_token_or_a_proxy_is_needed():
    """The error names both ways."""
    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    require_protection("127.0.0.1", None, behind_proxy=False)
    require_protection("0.0.0.0", TOKEN, behind_proxy=False)  # noqa: S104 - what is asked
    require_protection("0.0.0.0", None, behind_proxy=True)  # noqa: S104 - as above
    for host in ("0.0.0.0", "10.0.0.1", "::", "console.example"):  # noqa: S104 - as above
        with pytest.raises(ConfigError) as caught:
            require_protection(host, None, behind_proxy=False)
        assert "TLS proxy" in (caught.value.hint or "")
        assert "--token-file" in (caught.value.hint or "")


def test_a_token_file_holds_a_long_token(tmp_path: Path):
    """The line's end is no part of it; a token that can be guessed is refused."""
    path = tmp_path / "token"
    with pytest.raises(ConfigError, match="cannot be read"):
        token_of(path)
    path.write_text("secret\n")
    with pytest.raises(ConfigError, match="too short"):
        token_of(path)
    path.write_text(TOKEN + "\n")
    assert token_of(path) == TOKEN
