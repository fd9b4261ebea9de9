"""`stilltide status`: all clusters on one screen, and what needs a person.

*Source*: docs/operating.md, Status. *Invariants*: exit code 3 exactly when something needs a
person; nothing is written to any cluster.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from stilltide.pipeline.cli.common.asking import clusters_option
from stilltide.pipeline.cli.common.output import output_option
from stilltide.pipeline.cli.status.draw import drawn
from stilltide.pipeline.cli.status.options import audit_readers, limits_of, state_options
from stilltide.pipeline.cli.status.screen import blocks, heading
from stilltide.pipeline.cli.status.targets import status_targets
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.status.findings import (
    StatusFinding,
    StatusLimits,
    findings,
    needs_person,
)
from stilltide.pipeline.core.status.plain import plain
from stilltide.pipeline.core.status.state import SystemStatus
from stilltide.pipeline.drivers.status.collector import StatusCollector

EXIT_NEEDS_PERSON = 3

WIDTH = 80
"""Columns of the screen in a pipe, and the fewest on a terminal."""


@click.command(
    epilog="""\b
Exit codes:
  0  nothing needs a person
  1  the command failed; the error names the next step
  3  something needs a person; each such line names the command that helps
\b
Examples:
  stilltide status
  stilltide status --watch
  stilltide status --clusters 'a=127.0.0.1:9092 b=127.0.0.1:9192'
  stilltide status -o json | jq '.findings[] | select(.weight == "act")'
"""
)
@click.option("--watch", is_flag=True, help="Show the status again and again, until Ctrl-C.")
@click.option(
    "--every-s",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two screens of --watch.",
)
@state_options
@click.option(
    "--timeout-s",
    type=click.FloatRange(1, 300),
    default=10.0,
    show_default=True,
    help="Longest time until the first screen; what is not read by then is shown as ?.",
)
@clusters_option
@output_option
@click.pass_context
def status(
    ctx: click.Context,
    *,
    watch: bool,
    every_s: float,
    hold_s: float,
    audits: Sequence[Path],
    timeout_s: float,
    clusters: str | None,
    output: str,
) -> None:
    """Show all clusters on one screen, and what needs a person.

    Everything is read from the clusters' brokers, topics and workers. A cluster that does not
    answer within 2 s counts as away. `reads again` is the number of records that a Subscription
    reads again if its group goes on at that cluster now.
    """
    settings = load_settings(clusters=clusters)
    limits = limits_of(hold_s)
    shown = _Shown(limits, output)
    if watch:
        asyncio.run(_watched(settings, audits, shown, timeout_s, every_s))
    else:
        asyncio.run(_once(settings, audits, shown, timeout_s))
    ctx.exit(EXIT_NEEDS_PERSON if needs_person(shown.found) else 0)


class _Shown:
    """Shows states, and keeps the findings of the last one.

    Args:
        limits: from when on something is a finding.
        output: `table` or `json`.

    Attributes:
        found: findings of the state that was shown last.
    """

    def __init__(self, limits: StatusLimits, output: str) -> None:
        self.found: tuple[StatusFinding, ...] = ()
        self._limits = limits
        self._is_json = output == "json"
        self.console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)

    def print(self, status: SystemStatus, *, indent: int | None = 2) -> None:
        """Prints a state once."""
        if self._is_json:
            self.found = findings(status, self._limits)
            print(json.dumps(plain(status, self.found), indent=indent), flush=True)
        else:
            self.console.print(self.screen(status))

    def screen(self, status: SystemStatus) -> RenderableType:
        """A state as rich draws it."""
        self.found = findings(status, self._limits)
        return drawn(heading(status, self.found), blocks(status, self.found))

    @property
    def redraws(self) -> bool:
        """Whether a state takes the place of the one before: on a terminal."""
        return self.console.is_terminal and not self._is_json


def _collector(settings: Settings, audits: Sequence[Path]) -> StatusCollector:
    return StatusCollector(status_targets(settings), audits=audit_readers(audits))


async def _once(
    settings: Settings, audits: Sequence[Path], shown: _Shown, timeout_s: float
) -> None:
    async with _collector(settings, audits) as collector:
        shown.print(await collector.collect(timeout_s))


async def _watched(
    settings: Settings, audits: Sequence[Path], shown: _Shown, timeout_s: float, every_s: float
) -> None:
    """Shows states until SIGINT or SIGTERM; on a terminal each takes the place of the last."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    if not shown.redraws:
        async with _collector(settings, audits) as collector:
            async for state in _states(collector, stopped, timeout_s, every_s):
                shown.print(state, indent=None)
        return
    asking = Text("asking the clusters; Ctrl-C ends")
    last: SystemStatus | None = None
    with Live(asking, console=shown.console, screen=True, auto_refresh=False) as live:
        live.refresh()
        async with _collector(settings, audits) as collector:
            async for state in _states(collector, stopped, timeout_s, every_s):
                last = state
                live.update(shown.screen(state), refresh=True)
    if last is not None:  # the terminal has its former content back
        shown.print(last)


async def _states(
    collector: StatusCollector, stopped: asyncio.Event, timeout_s: float, every_s: float
) -> AsyncIterator[SystemStatus]:
    """A state at once, then one every `every_s`, until `stopped` is set."""
    stopping = asyncio.create_task(stopped.wait())
    patience_s = timeout_s
    while not stopped.is_set():
        collecting = asyncio.create_task(collector.collect(patience_s))
        await asyncio.wait([collecting, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            collecting.cancel()
            return
        yield collecting.result()
        patience_s = every_s
        with suppress(TimeoutError):
            async with asyncio.timeout(every_s):
                await stopped.wait()
