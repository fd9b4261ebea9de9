"""Proxies in front of the console that serve it below a path of theirs, beside other consoles.

Users of other consoles for Kafka saw a blank page: behind `https://example.com/kafka-ui/` it asked
for its script, style sheet and pages at the top of the site.
"""

import re
from collections.abc import AsyncIterator
from urllib.parse import urljoin, urlsplit

import aiohttp
import pytest
from aiohttp import web

from stilltide.pipeline.console.render import PAGES
from tests.support.console.served import Served, served
from tests.support.status.samples import WELL

TOKEN = "d7c1f0a35c8848d2b6f1"  # noqa: S105 - of tests
PREFIXES = ("/ops/stilltide/", "/other/")
REWRITTEN = {"content-encoding", "content-length", "transfer-encoding"}
LINKS = re.compile(r'(?:src|href|action|data-events)="([^"#]+)"')


@pytest.fixture
async def consoles() -> AsyncIterator[tuple[Served, Served]]:
    """Two consoles with a token."""
    async with served(WELL, token=TOKEN) as first, served(WELL, token=TOKEN) as second:
        yield first, second


@pytest.fixture
async def site(consoles: tuple[Served, Served]) -> AsyncIterator[str]:
    """The address of a proxy that serves each console below its own path."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as asking:

        async def pass_on(request: web.Request) -> web.Response:
            for prefix, console in zip(PREFIXES, consoles, strict=True):
                if request.raw_path.startswith(prefix):
                    target = console.url + request.raw_path.removeprefix(prefix)
                    headers = {
                        it: request.headers[it]
                        for it in ("Cookie", "Content-Type")
                        if it in request.headers
                    }
                    body = await request.read()
                    call = asking.request(
                        request.method, target, headers=headers, data=body, allow_redirects=False
                    )
                    async with call as answer:
                        kept = [
                            (name, it)
                            for name, it in answer.headers.items()
                            if name.lower() not in REWRITTEN
                        ]
                        is_stream = answer.content_type == "text/event-stream"
                        content = b"" if is_stream else await answer.read()
                        passed = web.Response(status=answer.status, body=content)
                        passed.headers.extend(kept)
                        return passed
            raise web.HTTPNotFound

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0]
        yield f"http://{host}:{port}"
        await runner.cleanup()


async def test_all_that_a_page_names_is_below_the_path_of_the_console(site: str):
    """After the token was typed at each console; one does not forget its viewer for the other."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as viewer:
        for prefix in PREFIXES:
            async with viewer.get(site + prefix) as door:
                assert door.status == 401
                (form,) = re.findall(r'action="([^"]+)"', await door.text())
            async with viewer.post(urljoin(site + prefix, form), data={"token": TOKEN}) as answer:
                assert (answer.status, answer.url.path) == (200, prefix)
        for prefix in PREFIXES:
            links: set[str] = set()
            for name in ("", *PAGES):
                async with viewer.get(site + prefix + name) as page:
                    assert page.status == 200
                    text = await page.text()
                links |= {urljoin(str(page.url), link) for link in LINKS.findall(text)}
            assert len(links) > len(PAGES)
            for link in links:
                assert urlsplit(link).path.startswith(prefix), link
                async with viewer.get(link) as answer:
                    assert answer.status == 200, link


async def test_an_address_with_the_token_leads_to_the_same_page(site: str):
    """Below the path of the console, without the token."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as viewer:
        address = f"{site}{PREFIXES[0]}topic?cluster=a&token={TOKEN}"
        async with viewer.get(address) as page:
            assert page.status == 200
            assert str(page.url) == f"{site}{PREFIXES[0]}topic?cluster=a"
