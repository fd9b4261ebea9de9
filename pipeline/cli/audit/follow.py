"""`stilltide audit follow` as a service: its runs, its web site, its end.

*Invariants*: a run that has begun ends before the process does, except by SIGKILL, after which the
next start repeats the run. A cluster that is away ends no process that has run once. The end of
Spark's JVM ends the process, also between two runs.

A separate module, so that `stilltide audit run` need not import a web server's library.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.spark.session import (
    SparkOptions,
    check_spark_lives,
    spark_session,
    while_spark_lives,
)
from stilltide.pipeline.agents.probes import ProbeResult
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.cli.common.site import serving_site
from stilltide.pipeline.cli.common.waiting import until_next_run
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.errors import ReportError
from stilltide.pipeline.jobs.audits.follow.directory import run_once
from stilltide.pipeline.jobs.audits.follow.history import row_of
from stilltide.pipeline.jobs.audits.follow.state import locked
from stilltide.pipeline.jobs.audits.follow.step import Follower, Stepped
from stilltide.pipeline.jobs.audits.report import KINDS
from stilltide.pipeline.jobs.audits.verdicts import Verdict
from stilltide.pipeline.metrics.audits import ALL, AuditFigures, AuditMetrics, CheckFigures


@dataclass(frozen=True)
class Follow:
    """What to follow, and how.

    Attributes:
        follower: makes the runs.
        directory: of the report.
        every_s: seconds from the end of a run to the begin of the next one.
        is_once: whether to end when everything is checked.
        web_port: port of the site; None for no site.
    """

    follower: Follower
    directory: Path
    every_s: float
    is_once: bool
    web_port: int | None


class Following:
    """Runs until it is stopped.

    Args:
        what: what to follow.
        settings: of the process.
        check: raises if the JVM has ended; blocks.
    """

    def __init__(self, what: Follow, settings: Settings, check: Callable[[], None]) -> None:
        self._what = what
        self._settings = settings
        self._check = check
        self._stopped = asyncio.Event()
        self._last: Stepped | None = None
        self._ended_s = 0.0
        self._problem = "the first run has not ended"

    async def run(self) -> Verdict:
        """Runs; returns the verdict of the last run, `Verdict.EMPTY` without any."""
        what, settings = self._what, self._settings
        registry = CollectorRegistry()
        registry.register(AuditMetrics(self._figures))
        own = settings.cluster, settings.bootstrap_servers, KafkaConnector(settings.kafka)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopped.set)
        async with serving_site(
            settings, what.web_port, registry, {"broker": own}, {"audit": self._ready}
        ) as web:
            _print({"event": "following", "web": web})
            while not self._stopped.is_set():
                goes_on = await self._run()
                if what.is_once and not goes_on:
                    break
                if not goes_on:
                    await until_next_run(self._stopped, what.every_s, self._check)
        return Verdict.EMPTY if self._last is None else self._last.report.verdict

    async def _run(self) -> bool:
        """Runs once; returns whether the next run has work at once."""
        what, before = self._what, self._last
        try:
            found = await asyncio.to_thread(run_once, what.follower, what.directory)
        except RetriableError as error:
            if what.is_once or before is None:
                raise
            self._problem = str(error)
            say(f"the run failed, and is repeated: {error}")
            return False
        except OSError as error:
            raise ReportError(
                f"cannot write the report to {what.directory}", detail=str(error)
            ) from error
        self._last, self._ended_s, self._problem = found, time.time(), ""
        row = row_of(found.state.run, found.report)
        _print({"event": "run", **row._asdict()})
        moved = before is None or found.state.positions != before.state.positions
        return moved and not found.is_all

    async def _ready(self) -> ProbeResult:
        if self._problem:
            return ProbeResult(passed=False, text=self._problem)
        assert self._last is not None, "a run without a problem has ended"
        text = f"{self._last.report.verdict.value} after {self._last.state.run} runs"
        return ProbeResult(passed=True, text=text)

    def _figures(self) -> AuditFigures | None:
        if self._last is None:
            return None
        report, state = self._last.report, self._last.state
        checks = {
            one.check.value: CheckFigures(
                one.verdict.value,
                {kind.value: one.finding_counts.get(kind, 0) for kind in sorted(KINDS[one.check])},
            )
            for one in report.checks
        }
        total = sum(report.finding_counts.values())
        checks[ALL] = CheckFigures(report.verdict.value, {ALL: total})
        return AuditFigures(checks, state.positions, state.run, self._ended_s)


def follow_until_stopped(what: Follow, settings: Settings, options: SparkOptions) -> Verdict:
    """Follows until SIGTERM or SIGINT, or once.

    Raises:
        ConfigError: a port is taken.
        FatalError: Spark's JVM has ended.
        Others: as `run_once` raises.
    """
    with locked(what.directory), while_spark_lives(), spark_session(options) as spark:
        return asyncio.run(Following(what, settings, partial(check_spark_lives, spark)).run())


def _print(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)
