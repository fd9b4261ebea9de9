"""A connection that stays open and passes nothing any more is given up, by every program.

No end of such a connection comes: a firewall has forgotten it, or the host of the broker is gone.
`make chaos ARGS="-k half_open"` prints for each program how long the others waited for it.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.proxied.merging import Files
from tests.chaos.proxied.scenario import LINKS, MEMBERS, PROGRAMS, WORKERS, WRITERS, Scenario
from tests.chaos.proxied.site import Site
from tests.support.looks import between_looks

NOTICED_S = 90.0
"""Time within which all goes on again, on a busy machine; a worker notices within 30 s (see
`UNANSWERED_S` in `pipeline/agents/apps.py`)."""


class Progress:
    """What programs have done lately, by their files."""

    def __init__(self, directory: Path) -> None:
        self._files = Files(directory)

    async def everywhere(self, since_ns: int, within_s: float) -> None:
        """Waits until each writer has begun and committed, and each member has polled that, since.

        Raises:
            AssertionError: it has not come to that in time; names what is missing.
        """
        missing = {*WRITERS, *MEMBERS}
        begun: set[str] = set()
        try:
            async with asyncio.timeout(within_s):
                while missing:
                    for line in self._files.more():
                        missing -= self._done(line, since_ns, begun)
                    await between_looks()
        except TimeoutError:
            raise AssertionError(f"after {within_s:g} s nothing of {sorted(missing)}") from None

    def _done(self, line: Mapping[str, Any], since_ns: int, begun: set[str]) -> set[str]:
        """The program that a line shows at work."""
        name = str(line.get("txn", line.get("value", ""))).partition("/")[0]
        match line["what"]:
            case "begin" if line["at_ns"] > since_ns and "plain" not in line:
                begun.add(name)
            case "ended" if name in begun and line["outcome"] == "committed":
                return {name.partition(".")[0]}
            case "poll" if name in begun:
                return {str(line["member"]).partition(".")[0]}
            case _:
                return set()
        return set()


@pytest.mark.timeout(3600)
async def test_half_open_connections_are_given_up(kept: Path):
    """All connections of one program pass nothing any more: soon all programs go on."""
    progress = Progress(kept / "histories")
    waited: dict[str, float] = {}
    async with Site(kept, PROGRAMS) as site, Scenario(site, kept, 1):
        await progress.everywhere(0, 2 * NOTICED_S)
        for program in (*WORKERS, *LINKS, "writer-1", "reader-1", "member-1", "copier-1"):
            for proxy in site.lines(program, 0):
                proxy.half_open()
            began_s, since_ns = time.monotonic(), time.monotonic_ns()
            try:
                await progress.everywhere(since_ns, 5 * NOTICED_S)
            finally:
                waited[program] = time.monotonic() - began_s
                sys.stdout.write(f"{program}: {waited[program]:.1f} s\n")
    assert max(waited.values()) < NOTICED_S, waited
