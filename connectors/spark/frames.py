"""Makes frames outside of Spark's plans: of data in the driver, and of joins that are planned once.

A frame of Python rows needs a Python worker each time it is evaluated. Spark copies a table that it
takes for small into the plan as rows, which planning visits again and again: 200 000 rows add half
a second to a query, and take three times as long to broadcast.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

_IN_PLAN_BYTES_MAX = "spark.sql.execution.arrow.localRelationThreshold"
_BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_ROWS_OF_TASK = 100_000
"""Rows of an Arrow batch. Spark makes a task of each batch, and by default batches of 10 000 rows:
a broadcast of a million rows would be a hundred tasks each time."""

_setting = RLock()


def frame_of_table(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A frame of the table's rows."""
    with (
        session_setting(spark, _IN_PLAN_BYTES_MAX, "0"),
        session_setting(spark, _BATCH_ROWS, str(_ROWS_OF_TASK)),
    ):
        return spark.createDataFrame(table)


def frame_of_rows(
    spark: SparkSession, rows: Sequence[tuple[object, ...]], schema: pa.Schema
) -> DataFrame:
    """A frame of one or more rows, with the given schema."""
    columns = [
        pa.array(column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return frame_of_table(spark, pa.Table.from_arrays(columns, schema=schema))


def planned_once(frame: DataFrame) -> DataFrame:
    """A frame of the same rows, whose joins are broadcast now, once for all actions on it.

    Spark plans each action, and a broadcast belongs to one plan: a frame that is counted and then
    written would be broadcast twice. The returned frame begins where the plan of this one ends, as
    a checkpoint's frame does, but nothing is stored: the rows are computed by each action. Filters
    and selections of the caller stay behind the joins. Spark removes the broadcast when the frame,
    and all that were made of it, are collected as garbage.
    """
    spark: Any = frame.sparkSession
    planned: Any = frame._jdf  # noqa: SLF001 - PySpark's only public form makes Python objects of rows
    rows = planned.queryExecution().toRdd()
    made = spark._jsparkSession.internalCreateDataFrame(rows, planned.schema(), False)  # noqa: SLF001 - not streaming; as above
    return DataFrame(made, spark)


@contextmanager
def session_setting(spark: SparkSession, name: str, value: str) -> Generator[None]:
    """Sets a session's setting for frames made in the block; restores the old value afterwards."""
    with _setting:
        before = spark.conf.get(name) or ""
        spark.conf.set(name, value)
        try:
            yield
        finally:
            spark.conf.set(name, before)
