"""`stilltide table`: keeps tables of committed records with Spark.

*Source*: docs/protocols K, docs/tables.md.
"""

import click

from stilltide.pipeline.cli.common.asking import bootstrap_option, command_settings, web_port_option
from stilltide.pipeline.cli.common.spark import (
    SparkAsked,
    run_options,
    spark_options,
    topics_option,
)
from stilltide.pipeline.jobs.tables.append import Appending
from stilltide.pipeline.jobs.tables.batches import RECORDS_MAX
from stilltide.pipeline.jobs.tables.target import parse_target


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
    from stilltide.pipeline.cli.table.follow import TableFollow, follow_until_stopped  # noqa: PLC0415 - no other command serves

    settings = command_settings(bootstrap_servers=bootstrap_servers)
    target = parse_target(to)
    what = Appending(settings.kafka, topics, records_max, by_index, headers)
    follow_until_stopped(TableFollow(what, target, every_s, is_once, web_port), settings, spark)
