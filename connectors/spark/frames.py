"""Frames of what the driver knows: by way of Arrow, and kept out of Spark's plans.

*Source*: facts, spark.md 4. A frame of Python rows needs a Python worker each time it is evaluated.
And of a table that Spark takes for small it makes rows of the plan itself, which planning walks
again and again: 200 000 rows cost a query half a second, and take thrice as long to broadcast.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import Lock

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

_IN_PLAN_BYTES_MAX = "spark.sql.execution.arrow.localRelationThreshold"

_setting = Lock()


def frame_of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A frame of the table's rows."""
    with session_setting(spark, _IN_PLAN_BYTES_MAX, "0"):
        return spark.createDataFrame(table)


def frame_of_rows(
    spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: pa.Schema
) -> DataFrame:
    """A frame of rows of a schema; at least one."""
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return frame_of_table(spark, pa.Table.from_arrays(columns, schema=schema))


@contextmanager
def session_setting(spark: SparkSession, name: str, value: str) -> Generator[None]:
    """Has one setting of a session be so for frames that are made inside; then puts it back."""
    with _setting:
        before = spark.conf.get(name) or ""
        spark.conf.set(name, value)
        try:
            yield
        finally:
            spark.conf.set(name, before)
