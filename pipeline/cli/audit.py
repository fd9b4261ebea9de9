"""`stilltide audit`: checks topics with Spark, for both kinds of transaction.

*Source*: docs/protocols C6, D, F.

*Invariants*: the exit code is the verdict; stdout holds only the result.

`stilltide audit follow` as a service: its runs, its web site, its end.

*Invariants*: a run that has begun ends before the process does, except by SIGKILL, after which the
next start repeats the run. A cluster that is away ends no process that has run once. The end of
Spark's JVM ends the process, also between two runs.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from stilltide.connectors.spark.options import SparkView
from stilltide.connectors.spark.session import (
    check_spark_lives,
    spark_session,
    while_spark_lives,
)
from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings, web_port_option
from stilltide.pipeline.cli.common.output import Row, output_option, print_event, print_rows, say
from stilltide.pipeline.cli.common.site import FollowPace
from stilltide.pipeline.cli.common.site import follow as follow_runs
from stilltide.pipeline.cli.common.spark import (
    LINES_EVERY_S,
    SparkAsked,
    SparkBar,
    SparkLines,
    run_options,
    spark_options,
    task_view,
    topics_option,
)
from stilltide.pipeline.errors import ConfigError, ReportError
from stilltide.pipeline.jobs.audits.files import FINDINGS, PAGE, write_report
from stilltide.pipeline.jobs.audits.follow.history import HISTORY, row_of
from stilltide.pipeline.jobs.audits.follow.state import PROGRESS, locked
from stilltide.pipeline.jobs.audits.follow.step import RECORDS_MAX, Follower, Stepped, run_once
from stilltide.pipeline.jobs.audits.last import SUMMARY
from stilltide.pipeline.jobs.audits.plan import (
    EVIDENCE_MAX,
    STEPS,
    AuditPlan,
    AuditProgress,
)
from stilltide.pipeline.jobs.audits.report import (
    KINDS,
    AuditReport,
    Check,
    CheckResult,
    PartitionFigures,
    Verdict,
)
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.pipeline.jobs.blocking import SlowSteps
from stilltide.pipeline.metrics.jobs import ALL, AuditFigures, AuditMetrics, CheckFigures
from stilltide.schemas.values import TopicPartition


class Following:
    """Runs of one audit, whose report goes to a directory."""

    def __init__(self, follower: Follower, directory: Path, progress: SlowSteps) -> None:
        self._follower = follower
        self._progress = progress
        self._directory = directory
        self.last: Stepped | None = None
        self._ended_s = 0.0

    @property
    def state(self) -> str | None:
        """The verdict so far."""
        last = self.last
        return last and f"{last.report.verdict.value} after {last.state.run} runs"

    def run(self, is_stopped: object) -> bool:  # noqa: ARG002 - a run is bounded
        """Runs once; a run that has begun ends, also of a command that is stopped."""
        before = self.last
        try:
            last = run_once(self._follower, self._directory)
        except OSError as error:
            raise ReportError(
                f"cannot write the report to {self._directory}", detail=str(error)
            ) from error
        finally:
            self._progress.done()
        self.last, self._ended_s = last, time.time()
        print_event({"event": "run", **row_of(last.state.run, last.report)._asdict()})
        moved = before is None or last.state.positions != before.state.positions
        return moved and not last.is_all

    def figures(self) -> AuditFigures | None:
        """The figures of the last run."""
        if self.last is None:
            return None
        report, state = self.last.report, self.last.state
        checks = {
            result.check.value: CheckFigures(
                result.verdict.value,
                {
                    kind.value: result.finding_counts.get(kind, 0)
                    for kind in sorted(KINDS[result.check])
                },
            )
            for result in report.checks
        }
        total = sum(report.finding_counts.values())
        checks[ALL] = CheckFigures(report.verdict.value, {ALL: total})
        return AuditFigures(checks, state.positions, state.run, self._ended_s)


EXIT_CODES = {Verdict.VALID: 0, Verdict.INVALID: 3, Verdict.UNKNOWN: 4, Verdict.EMPTY: 5}
"""Exit codes of verdicts; 1 is a failure and 2 wrong usage."""

_DIGEST_DIGITS_SHOWN = 8
_FAULTS = ("undecided", "malformed", "late")
_BOUND = re.compile(r"(?:(?P<topic>[^=]+)/(?P<partition>\d+)=)?(?P<offset>\d+)")


@click.group()
def audit() -> None:
    """Check the records of topics with Spark."""


@audit.command(
    epilog=f"""\b
Exit codes:
  0  valid: what was looked at is as it should be; checks without anything to look at are empty
  1  the audit failed
  3  invalid: the findings name the faults
  4  unknown: a check has no answer yet, or cannot have one any more
  5  empty: no check had anything to look at

\b
Written to the folder of --report:
  {FINDINGS}  a row for each finding; its metadata has the schema's version
  {SUMMARY}      everything except the plots
  {PAGE}       one page with plots, which loads nothing from anywhere

\b
Examples:
  stilltide audit run --topics orders,payments --update-index
  stilltide audit run --topics orders --from orders/0=1000 --to orders/0=2000
  stilltide audit run --topics orders --table s3-export/orders -o json
  stilltide audit run --topics orders --accept-unchecked
"""
)
@bootstrap_option
@topics_option
@click.option(
    "--from",
    "first",
    multiple=True,
    metavar="[TOPIC/PARTITION=]OFFSET",
    help="First offset to audit; counts of transactions that begin below it stay unknown.  "
    "[default: the log starts]",
)
@click.option(
    "--to",
    "until",
    multiple=True,
    metavar="[TOPIC/PARTITION=]OFFSET",
    help="End offset of the audit, exclusive.  [default: the last stable offsets]",
)
@click.option(
    "--table",
    "tables",
    multiple=True,
    help="A Parquet table made from the topics, with columns topic, partition and offset, to check "
    "for records that no reader may see.",
)
@click.option(
    "--update-index", is_flag=True, help="Bring aborted-index up to date first (`stilltide index`)."
)
@click.option(
    "--accept-unchecked",
    is_flag=True,
    help="Name the offsets whose transactions' record counts are no longer known, and accept them: "
    "without this flag the check of counts is unknown.",
)
@click.option("--digest", is_flag=True, help="Print each partition's content digest; needs a scan.")
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("stilltide-audit"),
    show_default=True,
    help="Folder for the report; files of an earlier report are replaced.",
)
@click.option(
    "--evidence",
    "evidence_max",
    type=click.IntRange(0, 10_000),
    default=EVIDENCE_MAX,
    show_default=True,
    help="Most findings listed of each kind; all are counted.",
)
@spark_options()
@output_option
def run(  # noqa: PLR0917 - click passes options by name
    bootstrap_servers: str | None,
    topics: list[str],
    first: tuple[str, ...],
    until: tuple[str, ...],
    tables: tuple[str, ...],
    update_index: bool,  # noqa: FBT001 - by name too
    accept_unchecked: bool,  # noqa: FBT001 - by name too
    digest: bool,  # noqa: FBT001 - by name too
    report: Path,
    evidence_max: int,
    spark: SparkAsked,
    output: str,
) -> int:
    """Run every check on topics with transactions of either kind, or none.

    Each check is valid, invalid, unknown or empty, with evidence. The checks compare Kafka's
    filter of aborted native records with aborted-index; count offsets without a record; and look
    for native transactions that hang, for coordinated transactions with orphans, late records,
    wrong counts or two outcomes, and for records in a table that no reader may see.
    """
    settings = command_settings(bootstrap_servers=bootstrap_servers)
    plan = AuditPlan(
        topics=topics,
        first=_bounds("--from", first),
        until=_bounds("--to", until),
        tables=tables,
        digest=digest,
        accept_unchecked=accept_unchecked,
        allow_compacted=settings.allow_compacted.split(),
        index_partitions=settings.partitions if update_index else None,
        index_replicas=settings.replicas,
        evidence_max=evidence_max,
    )
    asyncio.run(settings.kafka.reach())  # before Spark's JVM takes seconds to start
    with _progress() as (progress, view):
        options = spark.options(view)
        result = run_audit(settings.kafka, plan, spark_options=options, progress=progress)
    try:
        write_report(result, report)
    except OSError as error:
        raise ReportError(f"cannot write the report to {report}", detail=str(error)) from error
    if output == "json":
        print(json.dumps(result.to_dict(), indent=2))
    else:
        _print_tables(result)
    say(f"the report is {report / PAGE}")
    return EXIT_CODES[result.verdict]


@audit.command(
    epilog=f"""\b
Exit codes:
  0  stopped by SIGINT or SIGTERM, after the present run; with --once also: valid
  1  the audit failed; the error names the next step
  3, 4, 5  with --once: invalid, unknown, empty, as of `stilltide audit run`

\b
Written to the folder of --report, besides the files of `stilltide audit run`:
  {HISTORY}  a row for each run
  {PROGRESS}    what is checked; a killed process goes on from here

\b
Examples:
  stilltide audit follow --topics orders,payments --update-index --every 60 --web-port 6066
  stilltide audit follow --topics orders --once --report /var/lib/audits/orders
"""
)
@bootstrap_option
@topics_option
@run_options(every_s=60, every_s_min=1, done="checked")
@click.option(
    "--records-max",
    type=click.IntRange(1_000),
    default=RECORDS_MAX,
    show_default=True,
    help="Most offsets that a run reads; a run with more to do is followed by the next at once.",
)
@click.option(
    "--update-index",
    is_flag=True,
    help="Bring aborted-index up to date in each run, and compare with it.",
)
@click.option(
    "--accept-unchecked",
    is_flag=True,
    help="Name the offsets whose transactions' record counts are no longer known, and accept them.",
)
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("stilltide-audit"),
    show_default=True,
    help="Folder for the report and the progress; of these topics only.",
)
@spark_options()
@web_port_option
def follow(  # noqa: PLR0917 - click passes options by name
    bootstrap_servers: str | None,
    topics: list[str],
    every_s: float,
    is_once: bool,  # noqa: FBT001 - by name too
    records_max: int,
    update_index: bool,  # noqa: FBT001 - by name too
    accept_unchecked: bool,  # noqa: FBT001 - by name too
    report: Path,
    spark: SparkAsked,
    web_port: int | None,
) -> int:
    """Check what came to topics since the last run, again and again.

    Each run reads a bounded number of records, and the report is on everything up to this run, as
    one audit of everything would give. Prints a JSON line at the beginning and after each run.
    """
    settings = command_settings(bootstrap_servers=bootstrap_servers)
    checks = set(Check) - {Check.LEAKS} - (set() if update_index else {Check.EQUIVALENCE})
    plan = AuditPlan(
        topics=topics,
        checks=checks,
        accept_unchecked=accept_unchecked,
        allow_compacted=settings.allow_compacted.split(),
        index_partitions=settings.partitions if update_index else None,
        index_replicas=settings.replicas,
    )
    asyncio.run(settings.kafka.reach())  # before Spark's JVM takes seconds to start
    with task_view() as view, SlowSteps(say) as progress:
        options = spark.options(view)
        follower = Follower(settings.kafka, plan, records_max, options, progress)
        progress.step("starting Spark")
        work, pace = Following(follower, report, progress), FollowPace(every_s, is_once, web_port)
        with locked(report), while_spark_lives(), spark_session(options) as session:
            progress.done()
            check, metrics = partial(check_spark_lives, session), AuditMetrics(work.figures)
            asyncio.run(follow_runs("audit", work, metrics, settings, pace=pace, check=check))
    verdict = Verdict.EMPTY if work.last is None else work.last.report.verdict
    return EXIT_CODES[verdict] if is_once else 0


def _bounds(option: str, texts: Sequence[str]) -> dict[TopicPartition | None, int]:
    bounds: dict[TopicPartition | None, int] = {}
    for text in texts:
        read = _BOUND.fullmatch(text)
        if read is None:
            raise ConfigError(
                f"{option} {text}: not an offset", hint=f"{option} 1000 or {option} orders/0=1000"
            )
        place = None
        if read["topic"] is not None:
            place = TopicPartition(read["topic"], int(read["partition"]))
        if place in bounds:
            raise ConfigError(f"{option} is given twice for {place or 'all partitions'}")
        bounds[place] = int(read["offset"])
    return bounds


class _Lines:
    """Progress as lines on stderr, used without a terminal."""

    def __init__(self) -> None:
        self._step = self._last = ""
        self._next_s = 0.0

    def step(self, text: str) -> None:
        """Prints the step."""
        self._step = text
        self.note(text)

    def note(self, text: str) -> None:
        """Prints what the step does, once."""
        if text != self._last:
            self._last = text
            self._next_s = time.monotonic() + LINES_EVERY_S
            say(text)

    def share(self, done: float) -> None:
        """Prints the share now and then."""
        if time.monotonic() >= self._next_s:
            self.note(f"{self._step}: {done:.0%}")


class _Bar:
    """Progress as a bar over all steps."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("starting", total=STEPS)
        self._begun = -1

    def step(self, text: str) -> None:
        """The bar moves to the beginning of the step."""
        self._begun += 1
        self._bar.update(self._task, completed=self._begun, description=text)

    def note(self, text: str) -> None:
        """The bar's text changes."""
        self._bar.update(self._task, description=text)

    def share(self, done: float) -> None:
        """The bar moves within the step."""
        self._bar.update(self._task, completed=self._begun + done)


@contextmanager
def _progress() -> Generator[tuple[AuditProgress, SparkView]]:
    """Bars of steps and of Spark's tasks on a terminal, lines otherwise; both on stderr."""
    if not sys.stderr.isatty():
        yield _Lines(), SparkLines()
        return
    columns = BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar), SparkBar(bar)


def _print_tables(report: AuditReport) -> None:
    print_rows(_record_rows(report.partitions), "table", title="records")
    print_rows([finding.to_dict() for finding in report.findings], "table", title="findings")
    print_rows([_check_row(check) for check in report.checks], "table", title="checks")
    print(f"{report.verdict.value}; {report.elapsed_s:.1f} s")


def _check_row(result: CheckResult) -> Row:
    figures = ", ".join(f"{name} {count}" for name, count in result.figures.items())
    finding_count = sum(result.finding_counts.values())
    return {
        "check": result.check.value,
        "verdict": result.verdict.value,
        "findings": finding_count,
        "looked at": figures.replace("_", " "),
    }


def _record_rows(partitions: Sequence[PartitionFigures]) -> list[Row]:
    """One row for each partition; a fault without any record gets no column."""
    records = [partition.records for partition in partitions]
    faults = [fault for fault in _FAULTS if any(getattr(each, fault) for each in records)]
    return [
        {
            "partition": f"{partition.records.topic}/{partition.records.partition}",
            "offsets": f"[{partition.records.start_offset}, {partition.records.end_offset})",
            "written": partition.records.written,
            "visible": partition.records.visible,
            "plain": partition.records.plain,
            "hidden": partition.records.hidden,
            "aborted": partition.batches and partition.batches.aborted,
            "markers": partition.batches and partition.batches.markers,
            **{fault: getattr(partition.records, fault) for fault in faults},
            **_digest(partition.records.digest),
        }
        for partition in partitions
    ]


def _digest(digest: int | None) -> Row:
    """The last digits of a digest, hexadecimal."""
    return {} if digest is None else {"digest": f"{digest:x}"[-_DIGEST_DIGITS_SHOWN:]}
