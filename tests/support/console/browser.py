"""Chromium, driven by Playwright, as a viewer of the console."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright

from tests.support.browser import chromium

WAIT_MS = 120_000
WIDE_PX, NARROW_PX, HEIGHT_PX = 1280, 400, 900
_RULES = {"resultTypes": ["violations"]}
_FIRST_PAINT = """() => new Promise(resolve =>
    new PerformanceObserver(list => resolve(list.getEntries()[0].startTime))
        .observe({type: "paint", buffered: true}))"""
SERIOUS = frozenset({"serious", "critical"})


class Visit:
    """A page that is open in the browser, and what went wrong there.

    Attributes:
        page: the page.
        faults: messages of the page's console, faults of scripts, dialogs that a script opened.
        foreign: addresses of other sites that the page has asked for.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self.foreign: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda it: self.faults.append(f"{it.type}: {it.text}"))
        page.on("pageerror", lambda it: self.faults.append(str(it)))
        page.on("dialog", self._dialog)
        page.on("request", lambda it: it.url.startswith(url) or self.foreign.append(it.url))

    async def _dialog(self, dialog: Any) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    async def overflow_px(self) -> int:
        """By how much the page is wider than the window."""
        return await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    async def first_paint_ms(self) -> float:
        """Milliseconds from the page's navigation to its first paint; waits for the paint.

        An observer, since a page with the console's policy refuses the `eval` that
        `wait_for_function` needs as soon as its condition does not hold at once.
        """
        return await self.page.evaluate(_FIRST_PAINT)

    async def grievances(self) -> list[str]:
        """What axe finds that keeps people from using the page: the rule, and where."""
        found = await Axe().run(self.page, options=_RULES)
        return [
            f"{one['id']}: {node['target']}"
            for one in found.response["violations"]
            if one["impact"] in SERIOUS
            for node in one["nodes"]
        ]


@asynccontextmanager
async def driven() -> AsyncIterator[Browser]:
    """One browser for many visits."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=await chromium(),
            args=["--no-sandbox", "--disable-dev-shm-usage"],
            timeout=WAIT_MS,
        )
        yield browser
        await browser.close()


@asynccontextmanager
async def visiting(
    browser: Browser, url: str, *, of: Sequence[str] = (), **options: Any
) -> AsyncIterator[Visit]:
    """Opens a page in a context of its own during the block.

    Args:
        browser: the browser.
        url: address of the console, with a slash at its end.
        of: further parts of the address.
        options: options of the context, such as `color_scheme`, `viewport`, `java_script_enabled`.
    """
    options.setdefault("viewport", {"width": WIDE_PX, "height": HEIGHT_PX})
    context = await browser.new_context(**options)
    try:
        visit = Visit(await context.new_page(), url)
        await visit.page.goto(url + "".join(of), timeout=WAIT_MS)
        yield visit
    finally:
        await context.close()
