"""`stilltide table`: keeps tables of committed records with Spark.

*Source*: docs/protocols K, docs/tables.md.

`stilltide table follow` as a service: its runs, its web site, its end.

*Invariants*: a batch that has begun ends before the process does, except by SIGKILL, after which
the next start goes on from the table's last batch. A cluster that is away ends no process that has
run once. The end of Spark's JVM ends the process, also between two runs.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.spark.options import SparkView
from stilltide.connectors.spark.recipes import with_json
from stilltide.connectors.spark.session import check_spark_lives, spark_session, while_spark_lives
from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings, web_port_option
from stilltide.pipeline.cli.common.output import output_option, print_event, print_rows, say, utc
from stilltide.pipeline.cli.common.site import FollowPace
from stilltide.pipeline.cli.common.site import follow as follow_runs
from stilltide.pipeline.cli.common.spark import (
    SparkAsked,
    SparkBar,
    SparkLines,
    run_options,
    spark_options,
    task_view,
    topics_option,
)
from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.blocking import SlowSteps
from stilltide.pipeline.jobs.tables.append import (
    Appender,
    Appending,
    StoredBatch,
)
from stilltide.pipeline.jobs.tables.batches import RECORDS_MAX
from stilltide.pipeline.jobs.tables.status import (
    PartitionBehind,
    batch_offsets,
    partitions_behind,
)
from stilltide.pipeline.jobs.tables.table import PastBatch
from stilltide.pipeline.jobs.tables.target import (
    opened_table,
    parse_target,
    shown_table,
    table_session_options,
)
from stilltide.pipeline.metrics.jobs import TableFigures, TableMetrics


class TableFollowing:
    """Runs that append to one table.

    Args:
        appender: appends to the table.
        bar: shows the batches.
        progress: says that a batch takes long.
    """

    def __init__(self, appender: Appender, bar: "_Bar", progress: SlowSteps) -> None:
        self._appender = appender
        self._progress = progress
        self._bar = bar
        self.figures: TableFigures | None = None
        self._batches = self._records = 0
        self._batch_s = 0.0

    @property
    def state(self) -> str | None:
        """The last batch, and what is left."""
        figures = self.figures
        return figures and f"batch {figures.batch}, {figures.left} offsets behind"

    def run(self, is_stopped: Callable[[], bool]) -> bool:
        """Stores what is there; a batch that has begun ends, also of a command that is stopped."""
        self._progress.step("reading what is committed, and storing a batch")
        try:
            self._appender.append(self._stored, is_stopped)
        finally:
            self._progress.done()
        self._count()
        return False

    def _stored(self, batch: StoredBatch) -> None:
        self._batches += 1
        self._records += batch.records
        self._batch_s = batch.elapsed_s
        self._count()
        self._bar.advance(batch)
        self._progress.step(f"storing batch {batch.progress.number + 1}")
        print_event(
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
        self.figures = TableFigures(
            reader.progress.number,
            reader.progress.positions,
            reader.left,
            len(reader.blocked),
            self._batches,
            self._records,
            self._batch_s,
            time.time(),
        )


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
    "--json",
    "json_schema",
    metavar="DDL",
    help="Fields of JSON values, such as 'order string, cents bigint', for a column `data`; values "
    "that differ are marked in `faulty`. As of the table's first start.",
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
    json_schema: str | None,
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
    asyncio.run(settings.kafka.reach())  # before Spark's JVM takes seconds to start
    values = None if json_schema is None else partial(with_json, schema=json_schema)
    what = Appending(settings.kafka, topics, records_max, by_index, headers, values)
    with _bars() as (bar, view), SlowSteps(say) as progress, while_spark_lives():
        progress.step("starting Spark")
        with (
            spark_session(table_session_options(target, spark.options(view))) as session,
            opened_table(session, target) as opened,
            Appender(session, opened, what) as appender,
        ):
            progress.done()
            work = TableFollowing(appender, bar, progress)
            metrics, check = TableMetrics(lambda: work.figures), partial(check_spark_lives, session)
            pace = FollowPace(every_s, is_once, web_port)
            asyncio.run(follow_runs("table", work, metrics, settings, pace=pace, check=check))


@table.command(
    epilog="""\b
Exit codes:
  0  the table is known, and the topics are those of the table
  1  the command failed, or `stilltide table follow` would refuse the table

\b
Examples:
  stilltide table status delta:/tables/sales
  stilltide table status parquet:/tables/orders --history 10 -o json
"""
)
@bootstrap_option
@click.argument("place", metavar="FORMAT:PATH")
@click.option(
    "--history",
    "batches_max",
    type=click.IntRange(0, 10_000),
    default=0,
    show_default=True,
    help="Number of batches to list, the latest first.",
)
@spark_options()
@output_option
def status(
    bootstrap_servers: str | None,
    place: str,
    batches_max: int,
    spark: SparkAsked,
    output: str,
) -> None:
    """Show how far a table is behind its topics, in offsets and seconds, and its last batches.

    The table's writer may run meanwhile. Spark starts for Delta, Iceberg and remote tables.
    """
    settings = command_settings(bootstrap_servers=bootstrap_servers)
    target = parse_target(place)
    asyncio.run(settings.kafka.reach())  # before Spark's JVM takes seconds to start
    with task_view() as view, SlowSteps(say) as progress:
        progress.step("starting Spark")
        with shown_table(target, spark.options(view)) as opened:
            progress.step("reading the table's progress")
            history = opened.history(batches_max + 1)
    if not history:
        raise TableError(
            f"{place} holds no batch",
            hint=f"stilltide table follow --topics TOPIC --to {place} fills it",
        )
    behind = asyncio.run(partitions_behind(KafkaConnector(settings.kafka), history[0].progress))
    _print_status(place, history, batches_max, behind, output)


def _print_status(
    place: str,
    history: Sequence[PastBatch],
    batches_max: int,
    behind: Sequence[PartitionBehind],
    output: str,
) -> None:
    now_ms, last = SystemClock().now_ms(), history[0]
    rows = [
        {
            "partition": str(each.left.data),
            "stored until": each.left.start,
            "stable end": each.left.end,
            "offsets behind": each.offsets,
            "seconds behind": each.seconds(now_ms),
        }
        for each in behind
    ]
    before = [past.progress for past in history[1:]]
    batches = [
        {
            "batch": past.progress.number,
            "stored": utc(past.stored_ms),
            "offsets": batch_offsets(before[index] if index < len(before) else None, past.progress),
            "records": past.records,
        }
        for index, past in enumerate(history[:batches_max])
    ]
    offsets = sum(each.offsets for each in behind)
    seconds = max((each.seconds(now_ms) for each in behind), default=0.0)
    if output == "json":
        document = {
            "table": place,
            "batch": last.progress.number,
            "stored": utc(last.stored_ms),
            "offsets_behind": offsets,
            "seconds_behind": seconds,
            "partitions": [{k.replace(" ", "_"): v for k, v in row.items()} for row in rows],
            "batches": batches,
        }
        print(json.dumps(document, indent=2))
        return
    print_rows(rows, output)
    print_rows(batches, output, title="batches")
    stored = f"batch {last.progress.number}, stored {utc(last.stored_ms)}"
    print(f"{stored}; {offsets} offsets and {seconds:.1f} s behind")
