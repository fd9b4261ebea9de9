import gc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.source import frame_of_rows, planned_once, session_setting

SHUFFLES = "spark.sql.shuffle.partitions"
SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64()), ("id", pa.binary())])
ROWS = [(f"n{number}", number, b"%d" % number) for number in range(1000)]


def test_a_frame_has_the_rows_and_spark_plans_without_them(spark: SparkSession):
    """Rows that are part of a plan are walked each time it is looked at."""
    frame = frame_of_rows(spark, ROWS, SCHEMA)
    assert [tuple(row) for row in frame.sort("count").collect()] == ROWS
    jvm_frame: Any = frame._jdf
    plan = jvm_frame.queryExecution().optimizedPlan().toString()
    assert "LocalRelation" not in plan
    assert "LogicalRDD" in plan


def test_a_setting_is_put_back(spark: SparkSession):
    """The session is the caller's."""
    before = spark.conf.get(SHUFFLES)
    with session_setting(spark, SHUFFLES, "3"):
        assert spark.conf.get(SHUFFLES) == "3"
    assert spark.conf.get(SHUFFLES) == before


def jobs_of(spark: SparkSession, act: Callable[[], object]) -> int:
    """How many jobs Spark runs for an action."""
    context: Any = spark._jsc
    jobs = context.sc().dagScheduler()
    before = jobs.numTotalJobs()
    act()
    return jobs.numTotalJobs() - before


def written(frame: DataFrame) -> None:
    """An action other than a count."""
    frame.write.format("noop").mode("overwrite").save()


def anti_join(spark: SparkSession, rows: int) -> DataFrame:
    """The odd numbers below `rows`."""
    hidden = spark.range(0, rows, 2).withColumnRenamed("id", "hidden")
    return spark.range(rows).join(F.broadcast(hidden), F.col("id") == F.col("hidden"), "left_anti")


def test_a_frame_that_is_planned_once_is_not_broadcast_again(spark: SparkSession):
    """A broadcast is a job: the actions on the frame have those of a frame without a join."""
    joined, plain = anti_join(spark, 1000), spark.range(500)
    once = planned_once(joined)
    for _ in range(2):
        assert jobs_of(spark, once.count) == jobs_of(spark, plain.count)
        assert jobs_of(spark, lambda: written(once)) == jobs_of(spark, lambda: written(plain))
    assert jobs_of(spark, joined.count) > jobs_of(spark, plain.count)
    assert once.schema == joined.schema
    assert [row["id"] for row in once.filter("id < 6").sort("id").collect()] == [1, 3, 5]


def test_a_broadcast_ends_with_its_frame(spark: SparkSession):
    """A notebook that makes frame after frame would fill Spark's memory."""
    jvm: Any = spark._jvm
    memory = jvm.org.apache.spark.SparkEnv.get().memoryManager()
    before = memory.storageMemoryUsed()
    once = planned_once(anti_join(spark, 200_000))
    assert once.filter("id < 6").count() == 3
    held = memory.storageMemoryUsed() - before
    assert held > 1_000_000
    del once
    for _ in range(200):  # Spark's cleaner is a thread of its own
        gc.collect()
        jvm.java.lang.System.gc()
        if memory.storageMemoryUsed() - before < held / 2:
            return
    raise AssertionError(f"{memory.storageMemoryUsed() - before} of {held} bytes are still held")
