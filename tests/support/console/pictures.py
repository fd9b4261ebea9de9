"""Writes the pictures of the documentation: pages of the console in a real browser.

`make screenshots` runs this module. A picture is not compared: fonts differ between machines.
"""

import asyncio
from pathlib import Path

from playwright.async_api import Browser

from tests.support.console.answers import ADDRESSES, ANSWERS
from tests.support.console.browser import WIDE_PX, driven, visiting
from tests.support.console.served import served
from tests.support.console.states import BUSY, half_hour

FOLDER = Path(__file__).parents[3] / "docs/img"
PICTURES = {
    "console-overview": ("overview", "light"),
    "console-transactions": ("transactions", "dark"),
    "console-topic": (ADDRESSES["topic"], "light"),
}
"""By name: page and colours."""

HEIGHT_PX = 700
BYTES_MAX = 150_000


async def draw(browser: Browser, folder: Path) -> list[Path]:
    """Writes each picture to the folder; returns the files."""
    written = []
    async with served(BUSY, answer=ANSWERS["busy"], samples=half_hour(BUSY)) as console:
        for name, (page, scheme) in PICTURES.items():
            written.append(folder / f"{name}.png")
            size = {"width": WIDE_PX, "height": HEIGHT_PX}
            async with visiting(
                browser, console.url, of=[page], color_scheme=scheme, viewport=size
            ) as visit:
                await visit.page.screenshot(path=written[-1])
    return written


async def main() -> None:
    """Writes the pictures of the documentation."""
    async with driven() as browser:
        await draw(browser, FOLDER)


if __name__ == "__main__":
    asyncio.run(main())
