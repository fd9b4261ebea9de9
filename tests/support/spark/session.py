"""One Spark session for all tests of the run, because a start takes seconds."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import KAFKA_DDL

Header = tuple[str, bytes | None]


@contextmanager
def local_spark() -> Iterator[SparkSession]:
    """A session of two threads that reads Kafka, tuned to start fast; the active one if any."""
    options = SparkOptions(
        jars=spark_jars(),
        master="local[2]",
        shuffle_partitions=2,
        java_options="-XX:TieredStopAtLevel=1",
    )
    with spark_session(options) as session:
        yield session


def kafka_frame(
    spark: SparkSession,
    rows: Iterable[tuple[int, list[Header] | None]],
    *,
    topic: str = "orders",
    partition: int = 0,
) -> DataFrame:
    """A frame in the schema of the Kafka source, from (offset, headers) pairs."""
    records = [(b"k", b"v", topic, partition, offset, None, 0, headers) for offset, headers in rows]
    return spark.createDataFrame(records, KAFKA_DDL)
