"""`stilltide status`: all clusters on one screen, and what needs a person.

*Source*: docs/operating.md, Status. *Invariants*: exit code 3 exactly when something needs a
person; nothing is written to any cluster.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.cli.common.asking import clusters_option, on_stop, options
from stilltide.pipeline.cli.common.output import output_option
from stilltide.pipeline.cli.status_screen import screen
from stilltide.pipeline.config.loading import load_settings
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.core.status.findings import (
    StandingFindings,
    StatusFinding,
    StatusLimits,
    findings,
    needs_person,
)
from stilltide.pipeline.core.status.plain import plain
from stilltide.pipeline.core.status.values import AuditStatus, SystemStatus
from stilltide.pipeline.drivers.status.cluster import AWAY_S, StatusTarget
from stilltide.pipeline.drivers.status.collector import StatusCollector
from stilltide.pipeline.jobs.audits.last import last_audit
from stilltide.schemas.values import ClusterName

state_options = options(
    click.option(
        "--audit",
        "audits",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIRECTORY",
        help="Show the last audit, too, whose --report directory this is.",
    ),
    click.option(
        "--hold-s",
        type=click.FloatRange(1),
        default=60.0,
        show_default=True,
        help="Age from which a transaction that holds readers back needs a person.",
    ),
)
"""Adds `--hold-s` and `--audit`; `limits_of` and `audit_readers` take their values."""


def limits_of(hold_s: float) -> StatusLimits:
    """From when on something is a finding."""
    return StatusLimits(hold_ms=round(hold_s * 1000))


def audit_readers(audits: Sequence[Path]) -> dict[str, Callable[[], Awaitable[AuditStatus]]]:
    """What reads the last audit in each of these directories."""
    return {str(audit): partial(last_audit, audit) for audit in audits}


CLIENT = "stilltide-status"


def status_targets(settings: Settings) -> list[StatusTarget]:
    """Every cluster in `clusters`, in this order; without any, the process's own cluster.

    Raises:
        FatalError: an option of a cluster is not allowed.
    """
    if not settings.clusters:
        return [_target(settings.cluster, settings.kafka)]
    return [_target(name, settings.kafka_of(name)) for name in settings.clusters]


def _target(name: str, config: KafkaConfig) -> StatusTarget:
    connector = KafkaConnector(config)
    quick = replace(config, request_timeout_s=min(config.request_timeout_s, AWAY_S))
    return StatusTarget(
        ClusterName(name),
        config.bootstrap_servers,
        connector,
        KafkaConnector(quick),
        connector.native_transactions(CLIENT),
    )


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
def status(
    *,
    watch: bool,
    every_s: float,
    hold_s: float,
    audits: Sequence[Path],
    timeout_s: float,
    clusters: str | None,
    output: str,
) -> int:
    """Show all clusters on one screen, and what needs a person.

    Everything is read from the clusters' brokers, topics and workers. A cluster that does not
    answer within 2 s counts as away. `reads again` is the number of records that a Subscription
    reads again if its group goes on at that cluster now.
    """
    settings = load_settings(clusters=clusters)
    limits = limits_of(hold_s)
    shown = _Shown(
        StandingFindings(limits).of if watch else partial(findings, limits=limits), output
    )
    if watch:
        asyncio.run(_watched(settings, audits, shown, timeout_s, every_s))
    else:
        asyncio.run(_once(settings, audits, shown, timeout_s))
    return EXIT_NEEDS_PERSON if needs_person(shown.findings) else 0


class _Shown:
    """Shows states, and keeps the findings of the last one.

    Args:
        judge: gives the findings of a state.
        output: `table` or `json`.

    Attributes:
        findings: those of the state that was shown last.
    """

    def __init__(
        self, judge: Callable[[SystemStatus], tuple[StatusFinding, ...]], output: str
    ) -> None:
        self.findings: tuple[StatusFinding, ...] = ()
        self._judge = judge
        self._is_json = output == "json"
        self.console = Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)

    def print(self, status: SystemStatus, *, indent: int | None = 2) -> None:
        """Prints a state once."""
        if self._is_json:
            self.findings = self._judge(status)
            print(json.dumps(plain(status, self.findings), indent=indent), flush=True)
        else:
            self.console.print(self.screen(status))

    def screen(self, status: SystemStatus) -> RenderableType:
        """A state as rich draws it."""
        self.findings = self._judge(status)
        return screen(status, self.findings)

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
    on_stop(stopped.set)
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
