"""The built site: every link leads somewhere, and nothing is asked of other hosts."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, async_playwright

from tests.site.reference import PAGES
from tests.site.repository import ROOT
from tests.support.browser import chromium

_LOADED = {
    "script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href",
}  # fmt: skip
"""Tags that make a browser fetch something, and the attribute that says what."""

_STYLE = re.compile(r"(?:url\(|@import\s+)[\"']?(https?:)?//")
TIMEOUT_S = 600
WAIT_MS = 270_000

LOOKED_AT = ("index", "runbook", "comparison", "reference/api", "tutorials/fail-over")
"""Pages with all that the theme has: pictures, wide tables, docstrings, code."""


SCHEMES = {"light": "default", "dark": "slate"}
"""The theme's names of its colours."""


class Loads(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what the tag loads."""
        given = dict(attrs)
        if tag in _LOADED and given.get("rel") not in ("prev", "next", "canonical"):
            self.found.append(given.get(_LOADED[tag]) or "")


def loads(page: Path) -> list[str]:
    """What a page makes a browser fetch."""
    parser = Loads()
    parser.feed(page.read_text())
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link or anchor that leads nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_of_the_repository_is_on_the_site(site: Path):
    """Pages of docs, pages at the top, and the generated reference."""
    wanted = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    wanted += [Path(path) for path in PAGES]
    wanted += [Path("project") / path.name.lower() for path in ROOT.glob("*.md")]
    for path in wanted:
        name = "index.html" if path.name == "README.md" else f"{path.stem}.html"
        assert (site / path.parent / name).is_file(), path


def test_the_menu_names_every_page():
    """A page that the menu of `mkdocs.yml` leaves out would be found by nobody."""
    menu = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    wanted = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    wanted |= {*PAGES, *(f"project/{path.name.lower()}" for path in ROOT.glob("*.md"))}
    assert menu == wanted


def test_a_reader_of_the_site_asks_no_other_host(site: Path):
    """Scripts, styles, fonts and pictures are of the site itself."""
    pages = [*site.rglob("*.html")]
    assert len(pages) > len(PAGES)
    outside = {
        f"{page.relative_to(site)}: {target}"
        for page in pages
        for target in loads(page)
        if re.match(r"(?:[a-z]+:)?//", target)
    }
    assert outside == set()
    styles = [*site.rglob("*.css")]
    assert styles
    assert [str(path) for path in styles if _STYLE.search(path.read_text())] == []


def test_the_search_knows_the_reference(site: Path):
    """A setting, a command and an alert are found."""
    index = (site / "search/search_index.json").read_text()
    for name in ("marker_retention_ms", "stilltide group failover", "StilltideOwnersFight"):
        assert name in index


def test_docstrings_are_shown(site: Path):
    """The calls of the package are on the page, with their arguments."""
    page = (site / "reference/api.html").read_text()
    for anchor in ("Subscription.seek", "TransactionClient.transaction", "Transaction.commit"):
        assert f'.{anchor}"' in page, anchor
    assert "wait_visible" in page
    assert '(<a href="../protocols/c-log.html#c9-' in page, "a rule that is cited"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Says nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    """A real browser."""
    async with async_playwright() as playwright:
        program = await chromium()
        browser = await playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox"], timeout=WAIT_MS
        )
        yield browser
        await browser.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_pages_can_be_read_by_everybody(browser: Browser, address: str, scheme: str):
    """Contrast, names and keyboard: nothing serious is wrong, in light and in dark."""
    page = await browser.new_page(color_scheme="dark" if scheme == "dark" else "light")
    page.set_default_timeout(WAIT_MS)
    for name in LOOKED_AT:
        await page.goto(f"{address}/{name}.html")
        await page.wait_for_selector(f"body[data-md-color-scheme='{SCHEMES[scheme]}']")
        found = (await Axe().run(page)).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == [], name


async def test_pages_fit_a_narrow_screen_and_ask_no_other_host(browser: Browser, address: str):
    """A page is as wide as a telephone, and all of it comes from the site."""
    page = await browser.new_page(viewport={"width": 400, "height": 900})
    page.set_default_timeout(WAIT_MS)
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(request.url))
    for name in LOOKED_AT:
        await page.goto(f"{address}/{name}.html")
        assert await page.evaluate("document.documentElement.scrollWidth") == 400, name
    assert asked
    assert {url for url in asked if not url.startswith(f"{address}/")} == set()


def pages_with_drawings(site: Path) -> list[str]:
    """Pages with lines and corners made of characters."""
    drawn = [path for path in site.rglob("*.html") if re.search("[┌│─►]", path.read_text())]
    assert drawn
    return [str(path.relative_to(site)) for path in drawn]


async def test_a_drawing_is_no_wider_than_its_column(browser: Browser, address: str, site: Path):
    """A drawing of characters needs no scrolling where the page shows both of its menus."""
    page = await browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(WAIT_MS)
    wide = """all => all.filter(it => /[┌│─►]/.test(it.textContent)
        && it.scrollWidth > it.clientWidth).length"""
    for name in pages_with_drawings(site):
        await page.goto(f"{address}/{name}")
        assert await page.locator("pre > code").evaluate_all(wide) == 0, name


async def test_the_home_page_is_one_screen(browser: Browser, address: str):
    """What it is, a program, a picture and for whom, before anybody scrolls; headings are bold."""
    page = await browser.new_page(viewport={"width": 1400, "height": 900})
    page.set_default_timeout(WAIT_MS)
    await page.goto(f"{address}/index.html")
    for part in ("h1", "pre", "img[src$='system.svg']", "table"):
        box = await page.locator(f"article {part}").first.bounding_box()
        assert box is not None, part
        assert box["y"] + box["height"] <= 900, part
    weight = "getComputedStyle(document.querySelector('article h1')).fontWeight"
    assert await page.evaluate(weight) == "700"


async def test_a_light_visit_after_a_dark_one_is_light(browser: Browser, address: str):
    """The site follows the system of the reader, who has chosen nothing."""
    context = await browser.new_context(color_scheme="dark")
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS)
    for scheme in ("dark", "light"):
        await page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        await page.goto(f"{address}/index.html")
        await page.wait_for_selector(f"body[data-md-color-scheme='{SCHEMES[scheme]}']")


async def test_the_search_leads_to_the_entry_of_a_setting(browser: Browser, address: str):
    """Who types the name of a setting gets its entry in the reference first."""
    page = await browser.new_page(viewport={"width": 1300, "height": 900})
    page.set_default_timeout(WAIT_MS)
    await page.goto(f"{address}/index.html")
    await page.fill("input.md-search__input", "marker_retention_ms")
    first = await page.wait_for_selector(".md-search-result__link")
    assert first is not None
    assert "/reference/settings.html" in (await first.get_attribute("href") or "")
