"""What Delta and Iceberg do with the batches of two writers: `python -m ... FOLDER`, prints JSON.

A program of its own, because a session has the jars with which its JVM was started.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.local.jars import (
    format_jars,
    spark_jars,
    spark_version,
    table_formats,
)
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.tables.delta import DELTA_SETTINGS
from stilltide.pipeline.jobs.tables.iceberg import iceberg_settings
from stilltide.pipeline.jobs.tables.table import Table
from stilltide.pipeline.jobs.tables.target import (
    TableTarget,
    opened_table,
    parse_target,
    read_parquet_table,
)
from stilltide.schemas.tables.progress import TableProgress
from stilltide.schemas.values import Offset, TopicPartition

FORMATS = table_formats(spark_version())
"""Those that there are for the PySpark of this process."""


def lakehouse_options(warehouse: Path) -> SparkOptions:
    """Of a session that reads and writes tables of all formats that there are."""
    having = {"delta": dict(DELTA_SETTINGS), "iceberg": iceberg_settings(warehouse.as_uri())}
    settings = [having[name] for name in FORMATS]
    extensions = ",".join(one.pop("spark.sql.extensions") for one in settings)
    return SparkOptions(
        jars=[*spark_jars(), *(jar for name in FORMATS for jar in format_jars(name))],
        master="local[2]",
        shuffle_partitions=2,
        settings=dict(item for one in settings for item in one.items())
        | {"spark.sql.extensions": extensions},
    )


def read_table(spark: SparkSession, target: TableTarget) -> DataFrame:
    """The records of a table."""
    if target.format in ("manifest", "parquet"):
        return read_parquet_table(spark, f"{target.format}:{target.place}")
    if target.format == "iceberg":
        return spark.table(target.iceberg_place[1])
    return spark.read.format("delta").load(target.uri)


def progress(number: int) -> TableProgress:
    """Ten offsets for each batch."""
    positions = {TopicPartition("orders", 0): Offset(10 * number)}
    return TableProgress(number, {"orders": b"i" * 16}, positions)


def records(spark: SparkSession, number: int) -> DataFrame:
    """The records of a batch."""
    return spark.range(10 * number - 10, 10 * number).withColumnRenamed("id", "offset")


def refused(work: Callable[[], object]) -> str:
    """The error of a call; empty if it succeeds."""
    try:
        work()
    except TableError as error:
        return error.primary
    return ""


def with_two_writers(spark: SparkSession, target: TableTarget) -> dict[str, object]:
    """Both load the progress after batch 1, and both store batch 2."""
    with opened_table(spark, target) as first, opened_table(spark, target) as second:
        begun = first.load().number
        first.append(records(spark, 1), progress(1))
        loaded = [one.load() == progress(1) for one in (first, second)]
        first.append(records(spark, 2), progress(2))
        slower = refused(lambda: second.append(records(spark, 2), progress(2)))
        first.append(records(spark, 3).limit(0), progress(3))
        after = load(second)
        return {
            "begun": begun,
            "loaded": loaded,
            "slower": slower,
            "after": after,
            "history": [[it.progress.number, it.records] for it in second.history(9)],
            "offsets": sorted(row[0] for row in read_table(spark, target).collect()),
            "foreign": refused(load_foreign(spark, target)),
        }


def load(table: Table) -> int:
    """The number of the last batch."""
    return table.load().number


def load_foreign(spark: SparkSession, target: TableTarget) -> Callable[[], object]:
    """A table of another job, at another place."""
    place = TableTarget(target.format, f"{target.place}_foreign")
    if place.format == "iceberg":
        spark.range(3).writeTo(place.iceberg_place[1]).using("iceberg").create()
    else:
        spark.range(3).write.format("delta").save(place.uri)

    def opened() -> None:
        with opened_table(spark, place) as table:
            table.load()

    return opened


def main() -> None:
    """Prints what happened, by format."""
    folder = Path(sys.argv[1])
    with spark_session(lakehouse_options(folder)) as spark:
        found = {
            name: with_two_writers(spark, parse_target(f"{name}:{folder}/lake/{name}_orders"))
            for name in FORMATS
        }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
