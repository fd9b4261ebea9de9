"""`stilltide table`: keeps tables of committed records with Spark.

*Source*: docs/protocols K, docs/tables.md.

`stilltide table follow` as a service: its runs, its web site, its end.

*Invariants*: a batch that has begun ends before the process does, except by SIGKILL, after which
the next start goes on from the table's last batch. A cluster that is away ends no process that has
run once. The end of Spark's JVM ends the process, also between two runs.

A separate module, so that other commands need not import a web server's library.
"""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import click
from prometheus_client import CollectorRegistry
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stilltide.connectors.errors import RetriableError
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.spark.options import SparkView
from stilltide.connectors.spark.session import check_spark_lives, spark_session, while_spark_lives
from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings, web_port_option
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.cli.common.site import serving_site, until_next_run
from stilltide.pipeline.cli.common.spark import (
    SparkAsked,
    SparkBar,
    SparkLines,
    run_options,
    spark_options,
    topics_option,
)
from stilltide.pipeline.config.settings import Settings
from stilltide.pipeline.drivers.shared.cluster_watch import ProbeResult
from stilltide.pipeline.jobs.tables.append import (
    Appender,
    Appending,
    StoredBatch,
)
from stilltide.pipeline.jobs.tables.batches import RECORDS_MAX
from stilltide.pipeline.jobs.tables.target import (
    TableTarget,
    opened_table,
    parse_target,
    table_session_options,
)
from stilltide.pipeline.metrics.tables import TableFigures, TableMetrics


@dataclass(frozen=True)
class TableFollow:
    """What to follow, and how.

    Attributes:
        what: topics, cluster, size of a batch.
        target: the table.
        every_s: seconds from the end of a run to the begin of the next one.
        is_once: whether to end when everything is stored.
        web_port: port of the site; None for no site.
    """

    what: Appending
    target: TableTarget
    every_s: float
    is_once: bool
    web_port: int | None


class TableFollowing:
    """Runs until it is stopped.

    Args:
        follow: what to follow.
        settings: of the process.
        appender: appends to the table.
        bar: shows the batches.
        check: raises if the JVM has ended; blocks.
    """

    def __init__(
        self,
        follow: TableFollow,
        settings: Settings,
        appender: Appender,
        bar: "_Bar",
        check: Callable[[], None],
    ) -> None:
        self._follow = follow
        self._settings = settings
        self._appender = appender
        self._stopped = asyncio.Event()
        self._figures: TableFigures | None = None
        self._batches = self._records = 0
        self._batch_s = 0.0
        self._problem = "the first run has not ended"
        self._bar = bar
        self._check = check

    async def run(self) -> None:
        """Runs; raises what the first run raises, and later what does not pass."""
        settings = self._settings
        registry = CollectorRegistry()
        registry.register(TableMetrics(lambda: self._figures))
        own = settings.cluster, settings.bootstrap_servers, KafkaConnector(settings.kafka)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stopped.set)
        async with serving_site(
            settings, self._follow.web_port, registry, {"broker": own}, {"table": self._ready}
        ) as web:
            _print({"event": "following", "web": web})
            while not self._stopped.is_set():
                await self._run()
                if self._follow.is_once:
                    break
                await until_next_run(self._stopped, self._follow.every_s, self._check)

    async def _run(self) -> None:
        try:
            await asyncio.to_thread(self._appender.append, self._stored, self._stopped.is_set)
        except RetriableError as error:
            if self._follow.is_once or self._figures is None:
                raise
            self._problem = str(error)
            say(f"the run failed, and is repeated: {error}")
            return
        self._problem = ""
        self._count()

    def _stored(self, batch: StoredBatch) -> None:
        self._batches += 1
        self._records += batch.records
        self._batch_s = batch.elapsed_s
        self._count()
        self._bar.advance(batch)
        _print(
            {
                "event": "batch",
                "batch": batch.progress.number,
                "records": batch.records,
                "offsets": batch.offsets,
                "behind": batch.left,
                "seconds": round(batch.elapsed_s, 3),
            }
        )

    def _count(self) -> None:
        reader = self._appender.reader
        assert reader is not None, "a run has ended well"
        self._figures = TableFigures(
            reader.progress.number,
            reader.progress.positions,
            reader.left,
            len(reader.blocked),
            self._batches,
            self._records,
            self._batch_s,
            time.time(),
        )

    async def _ready(self) -> ProbeResult:
        if self._problem:
            return ProbeResult(passed=False, text=self._problem)
        assert self._figures is not None, "a run without a problem has ended"
        text = f"batch {self._figures.batch}, {self._figures.left} offsets behind"
        return ProbeResult(passed=True, text=text)


class _Bar:
    """A bar of offsets."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task = shown.add_task("offsets", total=None)
        self._done = 0

    def advance(self, batch: StoredBatch) -> None:
        """The bar moves by a batch."""
        self._done += batch.offsets
        text = f"offsets, batch {batch.progress.number}"
        total = self._done + batch.left
        self._shown.update(self._task, completed=self._done, total=total, description=text)


@contextmanager
def _bars() -> Generator[tuple[_Bar, SparkView]]:
    """Bars of offsets and of Spark's tasks on a terminal, on stderr; nothing is drawn otherwise."""
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    text = TextColumn("{task.description}", markup=False)
    drawn = sys.stderr.isatty()
    with Progress(*columns, text, console=Console(stderr=True), disable=not drawn) as shown:
        yield _Bar(shown), SparkBar(shown) if drawn else SparkLines()


def follow_until_stopped(follow: TableFollow, settings: Settings, asked: SparkAsked) -> None:
    """Follows until SIGTERM or SIGINT, or once.

    Raises:
        SparkVersionError: the table's format has no jars for this version of Spark.
        ConfigError: a port is taken.
        FatalError: Spark's JVM has ended.
        Others: as `append_committed` raises.
    """
    with (
        _bars() as (bar, view),
        while_spark_lives(),
        spark_session(table_session_options(follow.target, asked.options(view))) as spark,
        opened_table(spark, follow.target) as table,
        Appender(spark, table, follow.what) as appender,
    ):
        check = partial(check_spark_lives, spark)
        asyncio.run(TableFollowing(follow, settings, appender, bar, check).run())


def _print(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


@click.group()
def table() -> None:
    """Keep tables of the committed records of topics with Spark."""


@table.command(
    epilog="""\b
Exit codes:
  0  stopped by SIGINT or SIGTERM, after the present batch; with --once: everything is stored
  1  the command failed; the error names the next step. Start it again: the table goes on from
     its last batch, and nothing is lost or doubled

\b
Tables:
  parquet:PATH               folders of Parquet files, on a local disk or on HDFS
  parquet:s3a://BUCKET/PATH  Parquet files named by manifests, as manifest:PATH
  delta:PATH                 a Delta table
  iceberg:PATH               an Iceberg table; PATH ends with NAMESPACE/TABLE
  iceberg:CATALOG.NS.TABLE   an Iceberg table of a catalog that is configured with --conf

\b
Examples:
  stilltide table follow --topics orders,payments --to delta:/tables/sales --web-port 6066
  stilltide table follow --topics orders --to parquet:/tables/orders --once
"""
)
@bootstrap_option
@topics_option
@click.option("--to", "to", required=True, metavar="FORMAT:PATH", help="The table.")
@run_options(every_s=2, every_s_min=0.1, done="stored")
@click.option(
    "--records-max",
    type=click.IntRange(1),
    default=RECORDS_MAX,
    show_default=True,
    help="Most offsets of a batch, about; a run stores as many batches as it needs.",
)
@click.option(
    "--by-index",
    is_flag=True,
    help="Leave out aborted native records by aborted-index, as far as it reaches, instead of by "
    "the Kafka client.",
)
@click.option(
    "--headers",
    is_flag=True,
    help="Keep the headers of applications in a column; as of the table's first start.",
)
@spark_options()
@web_port_option
def follow(  # noqa: PLR0917 - click passes options by name
    bootstrap_servers: str | None,
    topics: list[str],
    to: str,
    every_s: float,
    is_once: bool,  # noqa: FBT001 - by name too
    records_max: int,
    by_index: bool,  # noqa: FBT001 - by name too
    headers: bool,  # noqa: FBT001 - by name too
    spark: SparkAsked,
    web_port: int | None,
) -> None:
    """Append what is committed to a table, again and again, each record exactly once.

    Prints a JSON line at the beginning and after each batch. A partition is stored up to its first
    record whose transaction has not ended yet.
    """
    settings = command_settings(bootstrap_servers=bootstrap_servers)
    target = parse_target(to)
    what = Appending(settings.kafka, topics, records_max, by_index, headers)
    follow_until_stopped(TableFollow(what, target, every_s, is_once, web_port), settings, spark)
