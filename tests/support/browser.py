"""A real browser without a window, for pages that are files: it draws, prints and measures them.

The browser is the program in the variable CHROMIUM, or `chromium` or a like name on the PATH.
"""

import asyncio
import json
import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from tests.support.programs import program

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WAIT_S = 360

_MEASURE = """<!DOCTYPE html><title>measuring</title>
<iframe id="page" src="%(page)s" style="width:%(width)dpx;height:900px;border:0"></iframe>
<pre id="out"></pre><script>
onload = () => {
  const seen = document.getElementById("page").contentDocument, root = seen.documentElement;
  const style = (name) => getComputedStyle(seen.querySelector(name));
  const shapes = [...seen.querySelectorAll("svg path, svg rect")];
  document.getElementById("out").textContent = JSON.stringify({
    width: root.clientWidth, needed: root.scrollWidth, title: seen.title,
    background: style("body").backgroundColor, ink: style("body").color,
    font_px: parseFloat(style(".label").fontSize),
    fills: [...new Set(shapes.map((it) => getComputedStyle(it).fill))],
    flat: shapes.filter((it) => !it.getBoundingClientRect().width).length,
    head_px: style(".proved") && seen.querySelector(".proved").getBoundingClientRect().bottom,
  });
};
</script>"""

_PIXELS = """<!DOCTYPE html><img id="shot" src="%(page)s"><pre id="out"></pre><script>
onload = () => {
  const image = document.getElementById("shot"), canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
  const on = canvas.getContext("2d"); on.drawImage(image, 0, 0);
  const data = new Uint32Array(on.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const counts = new Map();
  for (const it of data) counts.set(it, (counts.get(it) || 0) + 1);
  const most = [...counts].sort((a, b) => b[1] - a[1])[0];
  document.getElementById("out").textContent = JSON.stringify({
    size: [canvas.width, canvas.height], colours: counts.size,
    background: [most[0] & 255, (most[0] >> 8) & 255, (most[0] >> 16) & 255],
    background_share: most[1] / data.length,
  });
};
</script>"""


async def chromium() -> str:
    """The program; installs Debian's package if there is none and the user may.

    Raises:
        AssertionError: there is no browser, and it cannot be installed.
    """
    found = os.environ.get("CHROMIUM") or await asyncio.to_thread(program, NAMES, "chromium")
    assert found, "no browser: `apt-get install chromium`, or set CHROMIUM to the program"
    return found


class Browser:
    """Runs the browser once for each question.

    Args:
        program: path of Chromium.
        folder: for the browser's profile and the pages that measure.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder

    async def screenshot(self, page: Path, to: Path, *, width: int, height: int, dark: bool) -> str:
        """Draws the page to a PNG; returns what the page's console said."""
        return await self._ask(
            page, f"--window-size={width},{height}", f"--screenshot={to}", dark=dark
        )

    async def print(self, page: Path, to: Path) -> None:
        """Prints the page to a PDF, without header and footer."""
        await self._ask(page, f"--print-to-pdf={to}", "--no-pdf-header-footer", dark=True)

    async def measure(self, page: Path, *, width: int, dark: bool) -> dict[str, Any]:
        """Sizes and colours of the page in a frame of some width."""
        return await self._measured(_MEASURE % {"page": page.as_uri(), "width": width}, dark=dark)

    async def pixels(self, png: Path) -> dict[str, Any]:
        """Size and colours of a picture."""
        return await self._measured(_PIXELS % {"page": png.as_uri()}, dark=False)

    async def console(self, page: Path) -> list[str]:
        """The messages of a page's console: faults of scripts, and what its policy forbids."""
        said = await self._ask(page, "--dump-dom", dark=False)
        return re.findall(r"CONSOLE[^\]]*\] (.*)", said)

    async def _measured(self, html: str, *, dark: bool) -> dict[str, Any]:
        path = self._folder / "measure.html"
        path.write_text(html, encoding="utf-8")
        said = await self._ask(path, "--dump-dom", "--allow-file-access-from-files", dark=dark)
        found = re.search(r'<pre id="out">(\{.*?\})</pre>', said, re.DOTALL)
        assert found, f"the page was not measured: {said[-2000:]}"
        return json.loads(unescape(found[1]))

    async def _ask(self, page: Path, *options: str, dark: bool) -> str:
        """What the browser writes to stdout and stderr."""
        command = [
            self._program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--enable-logging=stderr", "--virtual-time-budget=10000",
            f"--user-data-dir={self._folder / 'profile'}",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            *options, page.as_uri(),
        ]  # fmt: skip
        return await _run(command, WAIT_S)


async def _run(command: list[str], wait_s: float) -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(wait_s):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    text = said.decode(errors="replace")
    assert process.returncode == 0, f"{command[0]} ended with {process.returncode}: {text[-2000:]}"
    return text
