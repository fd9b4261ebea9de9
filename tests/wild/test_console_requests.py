"""Requests to the console that no browser sends.

What a user saw: a form of broken bytes sent to the console's door was answered with 500; a link to
`//evil.example?token=...` led on to another site; HEAD of an event stream never ended.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stilltide.pipeline.console.render import PAGES
from tests.support.console.served import Served, served
from tests.support.status.samples import WELL

pytestmark = pytest.mark.filterwarnings("ignore::aiohttp.multipart.BadContentDispositionHeader")
"""Its text holds bytes of a form, which are no text that pytest's processes could exchange."""

TOKEN = "d7c1f0a35c8848d2b6f1"  # noqa: S105 - of tests
ROUTES = (
    "/",
    *(f"/{name}" for name in PAGES),
    *(f"/events/{name}" for name in PAGES),
    "/events/none",
    "/livez",
    "/readyz",
    "/status.json",
    "/static/console.css",
    "/static/..%2f..%2faccess.py",
    "/door",
    "/nowhere",
)
METHODS = ("HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PURGE")
QUERIES = (
    b"%",
    b"%zz=%",
    b"topic=%ff%fe&partition=%00",
    b"topic=" + b"a" * 3000,
    b"cluster=a&topic=orders&partition=-1&from=99999999999999999999999999",
    b"cluster=a&topic=orders&partition=%d9%a3&first=1e9",
    b"cluster=%ed%a0%80&topic=%0d%0aSet-Cookie:x",
    b"token=%ff",
    b"token=" + TOKEN.encode()[:-1],
    b"&&&===&;",
)
HEADERS = (
    b"Cookie: stilltide_console=\xff\xfe; =; ;;",
    b"Authorization: Bearer \xe9\xff",
    b"Authorization: Bearer",
    b"Accept-Encoding: \xff, gzip;q=x",
    b"Content-Type: multipart/form-data; boundary=",
    b"Content-Type: application/x-www-form-urlencoded; charset=none-such",
    b"Content-Length: x",
    b"Range: bytes=5-1",
    b"If-None-Match: \xff",
    b"Expect: 200-maybe",
    b"Host: a",
    b"X-Large: " + b"a" * 20_000,
    b"Transfer-Encoding: chunked\r\nContent-Length: 3",
)
FORMS = (
    (b"multipart/form-data", b"token=x"),
    (b"multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: \xff\r\n\r\n"),
    (b"multipart/form-data; boundary=b", b"--c--"),
    (b"multipart/form-data; boundary=b", b"--b\r\n\r\n\r\n--b--\r\n"),
    (
        b"multipart/form-data; boundary=b",
        b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n\xff\r\n--b--\r\n',
    ),
    (b"application/x-www-form-urlencoded; charset=none-such", b"token=x"),
    (b"application/x-www-form-urlencoded", b"token=%ff\xff\x00"),
    (b"application/x-www-form-urlencoded; charset=utf-8", b"\xff\xfe=\xff"),
    (b"application/x-www-form-urlencoded\r\nContent-Encoding: gzip", b"token=x"),
    (b"application/x-www-form-urlencoded\r\nContent-Encoding: deflate", b"\x78\x9c\x00"),
    (b"application/x-www-form-urlencoded\r\nContent-Encoding: br", b"token=x"),
    (b"application/json", b"{"),
    (b"\xff/\xff", b"\xff"),
)


@pytest.fixture
async def console() -> AsyncIterator[Served]:
    """A console with a token."""
    async with served(WELL, token=TOKEN) as made:
        yield made


@pytest.fixture
async def open_console() -> AsyncIterator[Served]:
    """A console that everybody may look at."""
    async with served(WELL) as made:
        yield made


async def answered(console: Served, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and what has come of the body of an answer; 0: the connection was closed."""
    host, port = console.url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return 0, {}, b""
            lines = head.decode("latin-1").split("\r\n")
            headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
            if request.startswith(b"HEAD"):
                body = await reader.read()
            elif headers.get("Content-Type") == "text/event-stream":
                body = b""
            else:
                body = await reader.readexactly(int(headers.get("Content-Length", "0")))
    finally:
        writer.close()
    return int(lines[0].split(" ")[1]), headers, body


def asked(method: str, target: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    """Bytes of a request."""
    named = [b"" if any(it.startswith(b"Host:") for it in headers) else b"Host: localhost"]
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target), *filter(None, named), *headers]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


@pytest.mark.parametrize("route", ROUTES)
async def test_no_request_fails_the_console(open_console: Served, route: str):
    """Each is answered as far as it can be understood, or refused with 4xx; none with 5xx."""
    path = route.encode()
    requests = [asked(method, path) for method in METHODS]
    requests += [asked("GET", path + b"?" + query) for query in QUERIES]
    requests += [asked("GET", path, header) for header in HEADERS]
    requests += [asked("POST", path, b"Content-Type: " + kind, body=form) for kind, form in FORMS]
    statuses = await asyncio.gather(*(answered(open_console, it) for it in requests))
    failed = {
        request[:80]: status
        for request, (status, *_) in zip(requests, statuses, strict=True)
        if not 200 <= status < 500
    }
    assert failed == {}
    assert (await answered(open_console, asked("GET", b"/readyz")))[0] == 200


@pytest.mark.parametrize("form", FORMS)
async def test_a_broken_form_is_no_token(console: Served, form: tuple[bytes, bytes]):
    """Refused, whatever its bytes are."""
    kind, body = form
    status, _, _ = await answered(
        console, asked("POST", b"/door", b"Content-Type: " + kind, body=body)
    )
    assert status in {400, 401, 415}


@pytest.mark.parametrize("path", [f"/events/{name}" for name in PAGES])
async def test_head_of_an_event_stream_ends(open_console: Served, path: str):
    """The headers of the stream, without a body."""
    status, headers, body = await answered(open_console, asked("HEAD", path.encode()))
    assert (status, headers["Content-Type"], body) == (200, "text/event-stream", b"")


@pytest.mark.parametrize(
    ("target", "location"),
    [
        (b"////evil.example/a?token=%s", "./a"),
        (b"//evil.example?token=%s&first=1", None),
        (b"/\\evil.example?token=%s", None),
        (b"/%%5cevil.example?token=%s", None),
        (b"/%%2f%%2fevil.example?token=%s", None),
        (b"http://evil.example/topic?token=%s", "./topic"),
        (b"/topic?token=%s&cluster=a", "./topic?cluster=a"),
        (b"/?token=%s", "./"),
    ],
)
async def test_a_token_leads_to_this_site_alone(
    console: Served, target: bytes, location: str | None
):
    """The address without the token is a path of the console, however the request was written."""
    status, headers, _ = await answered(console, asked("GET", target % TOKEN.encode()))
    assert status in {303, 400}
    if location is not None:
        assert headers["Location"] == location
    told = headers.get("Location", "./")
    assert told[:2] == "./"
    assert told[2:3] not in {"/", "\\"}
    assert TOKEN not in told
