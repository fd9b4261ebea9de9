"""`stilltide demo`: transactions end to end, and three views of the result that must agree."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from stilltide.pipeline.cli.common.output import output_option, print_rows, say
from stilltide.pipeline.cli.common.spark import SparkAsked, SparkBar, spark_options
from stilltide.pipeline.demo.events import SAMPLE, Plan
from stilltide.pipeline.demo.run import TOPICS, DemoResult, run_demo
from stilltide.pipeline.demo.views import rows
from stilltide.pipeline.extras import require_module

EXIT_DIFFERENT = 3


class _Shown:
    """A line for each step, and a bar while transactions end; both on stderr."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("transactions", visible=False, start=False)

    def step(self, text: str) -> None:
        """Shows that a step begins."""
        self._bar.console.print(f"- {text}", highlight=False)

    def transactions(self, ended: int, total: int) -> None:
        """Shows how many transactions have ended."""
        self._bar.start_task(self._task)
        self._bar.update(self._task, completed=ended, total=total, visible=True)


@click.command(
    epilog="""\b
Exit codes:
  0  producer, consumer and Spark saw the same
  1  a part failed
  3  producer, consumer and Spark saw different records

\b
Examples:
  stilltide demo
  stilltide demo --file events.ndjson --abort-share 0.3
  stilltide demo -o json | jq '.views[].committed'
"""
)
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path),
    default=SAMPLE,
    help="Newline-delimited JSON objects of any kind.  [default: a bundled sample]",
)
@click.option(
    "--events-per-transaction",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Number of lines written as one transaction.",
)
@click.option(
    "--abort-share",
    type=click.FloatRange(0, 1),
    default=0.1,
    show_default=True,
    help="Share of the transactions that abort.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 4096),
    default=64,
    show_default=True,
    help="Transactions open at once.",
)
@spark_options(master=False)
@output_option
def demo(  # noqa: PLR0917 - click passes options by name
    path: Path,
    events_per_transaction: int,
    abort_share: float,
    concurrency: int,
    spark: SparkAsked,
    output: str,
) -> int:
    """Run transactions end to end on a real broker, and check the result.

    Starts a broker and a worker, writes the events as transactions over two topics, kills the
    worker half way and starts it again, reads the topics back read-committed, audits them with
    Spark, and compares what producer, consumer and Spark saw. Removes everything afterwards.
    """
    require_module("the worker of the demo", "faust")
    plan = Plan(path, events_per_transaction, abort_share, concurrency)
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        options = spark.options(SparkBar(bar))
        result = asyncio.run(run_demo(plan, _Shown(bar), options))
    if output == "json":
        print(json.dumps(_as_json(result), indent=2))
    else:
        print_rows(rows(list(result.views), list(TOPICS)), "table")
    for difference in result.differences:
        say(f"different: {difference}")
    verdict = "agree" if result.agrees else "DO NOT agree"
    say(f"producer, consumer and Spark {verdict}; {result.elapsed_s:.1f} s")
    return 0 if result.agrees else EXIT_DIFFERENT


def _as_json(result: DemoResult) -> dict[str, object]:
    return {
        "agrees": result.agrees,
        "differences": list(result.differences),
        "verdict": result.audit.verdict.value,
        "elapsed_s": round(result.elapsed_s, 3),
        "views": [
            {
                "name": view.name,
                "committed": view.committed,
                "aborted": view.aborted,
                "partitions": [
                    {
                        "topic": topic,
                        "partition": partition,
                        "written": audit.written,
                        **asdict(audit),
                    }
                    | {"digest": str(audit.digest)}
                    for (topic, partition), audit in sorted(view.partitions.items())
                ],
            }
            for view in result.views
        ],
    }
