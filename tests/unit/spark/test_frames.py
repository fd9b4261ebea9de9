import pyarrow as pa
from pyspark.sql import SparkSession

from stilltide.connectors.spark.frames import frame_of_rows, session_setting

SHUFFLES = "spark.sql.shuffle.partitions"
SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64()), ("id", pa.binary())])
ROWS = [(f"n{number}", number, b"%d" % number) for number in range(1000)]


def test_a_frame_has_the_rows_and_spark_plans_without_them(spark: SparkSession):
    """Rows that are part of a plan are walked each time it is looked at."""
    frame = frame_of_rows(spark, ROWS, SCHEMA)
    assert [tuple(row) for row in frame.sort("count").collect()] == ROWS
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert "LocalRelation" not in plan
    assert "LogicalRDD" in plan


def test_a_setting_is_put_back(spark: SparkSession):
    """The session is the caller's."""
    before = spark.conf.get(SHUFFLES)
    with session_setting(spark, SHUFFLES, "3"):
        assert spark.conf.get(SHUFFLES) == "3"
    assert spark.conf.get(SHUFFLES) == before
