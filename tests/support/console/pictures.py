"""Writes pictures of the console: those of the documentation, and every page for those who look.

`make screenshots` runs this module. A picture is not compared: fonts differ between machines.
"""

import asyncio
import re
from pathlib import Path

from playwright.async_api import Browser

from stilltide.pipeline.console.render import PAGES
from tests.support.console.answers import ADDRESSES, ANSWERS
from tests.support.console.browser import HEIGHT_PX, NARROW_PX, WIDE_PX, driven, visiting
from tests.support.console.served import served
from tests.support.console.states import BUSY, half_hour

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/img"
LOOKED_AT = ROOT / "build/screenshots"
PICTURES = {
    "console-overview": ("overview", "light", 1100),
    "console-transactions": ("transactions", "dark", 700),
    "console-topic": (ADDRESSES["topic"], "light", 700),
}
"""By name: page, colours, and height in pixels."""

BYTES_MAX = 200_000

DESK_PX = 1400
EVERY = (
    *PAGES,
    *ADDRESSES.values(),
    "transactions?cluster=a&txn=1:7001",
    "topic?cluster=a&topic=orders",
    f"{ADDRESSES['topic']}&offset=1200000",
    "groups?cluster=a&group=billing",
)
"""Addresses of every page, and of what ids lead to."""


async def draw(browser: Browser, folder: Path) -> list[Path]:
    """Writes each picture of the documentation to the folder; returns the files."""
    written = []
    async with served(BUSY, answer=ANSWERS["busy"], samples=half_hour(BUSY)) as console:
        for name, (page, scheme, height_px) in PICTURES.items():
            written.append(folder / f"{name}.png")
            size = {"width": WIDE_PX, "height": height_px}
            async with visiting(
                browser, console.url, of=[page], color_scheme=scheme, viewport=size
            ) as visit:
                await visit.page.screenshot(path=written[-1])
    return written


async def draw_every(browser: Browser, folder: Path) -> None:
    """Writes each page as a whole, on a desk and on a telephone, dark and light."""
    async with served(BUSY, answer=ANSWERS["busy"], samples=half_hour(BUSY)) as console:
        for width_px in (DESK_PX, NARROW_PX):
            size = {"width": width_px, "height": HEIGHT_PX}
            for page in EVERY:
                async with visiting(browser, console.url, of=[page], viewport=size) as visit:
                    for scheme in ("light", "dark"):
                        await visit.page.emulate_media(color_scheme=scheme)
                        name = re.sub(r"\W+", "-", page)
                        path = folder / f"{name}-{width_px}-{scheme}.png"
                        await visit.page.screenshot(path=path, full_page=True)


async def main() -> None:
    """Writes all pictures."""
    async with driven() as browser:
        await draw(browser, FOLDER)
        await draw_every(browser, LOOKED_AT)


if __name__ == "__main__":
    LOOKED_AT.mkdir(parents=True, exist_ok=True)
    asyncio.run(main())
