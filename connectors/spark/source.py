"""Bounded batch reads of Kafka partitions, with start and end offsets fixed before the read.

With `earliest` or `latest` each task would resolve its bound when it starts, and a retried task
again, so that a read would not be of one moment. So both bounds are always offsets.

*Invariants*: every offset in a range that holds a readable record is returned, or the job fails
(`failOnDataLoss`). Gaps from control records, aborted native data and compaction are no failure.

Refuses a read without partitions.

Makes frames outside of Spark's plans: of data in the driver, and of joins that are planned once.

A frame of Python rows needs a Python worker each time it is evaluated. Spark copies a table that it
takes for small into the plan as rows, which planning visits again and again: 200 000 rows add half
a second to a query, and take three times as long to broadcast.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.security import java_options
from stilltide.schemas.values import OffsetRange

KAFKA_DDL = (
    "key binary, value binary, topic string, partition int, offset bigint, "
    "timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""Schema of the Kafka source; `headers` is null, not empty, for a record without headers."""

_POLL_RECORDS_MAX = 50_000
"""Records of a poll: the source makes two offset requests for each, so Kafka's default of 500 makes
a scan slow."""

_FETCH_WAIT_MS = 5
"""Short, because every record of the read exists already. With Kafka's default of 500 nearly every
task would wait that long: the consumer prefetches past the log's end, and its offset requests queue
behind that fetch."""

_CALL_MS, _POLL_MS = 30_000, 60_000
"""Longest time of a call of Kafka's clients, and of a poll that brings nothing: a cluster that is
lost ends a read after that. Spark's own times, three calls of 60 s and polls of 120 s, add up to
several minutes."""

_V1_SOURCES = "spark.sql.sources.useV1SourceList"
"""The sources that Spark reads by its older interface, by default also Kafka's. The older interface
makes two more rows of each record, and takes 1.4 times the processor time (with headers 1.7)."""


def read_ranges(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    ranges: Sequence[OffsetRange],
    *,
    committed: bool = True,
    headers: bool = True,
) -> DataFrame:
    """The records of these ranges, of schema `KAFKA_DDL`; lazy, so broker errors come later.

    Args:
        spark: a session with the Kafka source's jars.
        bootstrap_servers: the cluster; a `KafkaConfig` for TLS or SASL.
        ranges: one or more ranges, each of another partition.
        committed: whether to hide open and aborted native transactions; then no range may end
            above its partition's last stable offset.
        headers: whether the frame has the column `headers`.
    """
    options = options_of(bootstrap_servers, ranges, committed=committed, headers=headers)
    with kafka_by_v2(spark):
        return spark.read.format("kafka").options(**options).load()


def options_of(
    bootstrap_servers: Cluster, ranges: Sequence[OffsetRange], *, committed: bool, headers: bool
) -> dict[str, str]:
    """The options of Spark's Kafka source with which `read_ranges` reads."""
    assert ranges, "nothing to read"
    assert len({read.data for read in ranges}) == len(ranges), "a partition is named twice"
    partitions: defaultdict[str, list[int]] = defaultdict(list)
    for read in ranges:
        partitions[read.data.topic].append(read.data.partition)
    config = config_of(bootstrap_servers)
    security = java_options(config.extra)
    return {
        **{f"kafka.{name}": value for name, value in security.items()},
        "kafka.bootstrap.servers": config.bootstrap_servers,
        "kafka.isolation.level": "read_committed" if committed else "read_uncommitted",
        "kafka.fetch.max.wait.ms": str(_FETCH_WAIT_MS),
        "kafka.max.poll.records": str(_POLL_RECORDS_MAX),
        "kafka.default.api.timeout.ms": str(_CALL_MS),
        "fetchOffset.numRetries": "1",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_MS),
        "assign": json.dumps(partitions),
        "startingOffsets": _offsets_json(ranges, lambda read: read.start),
        "endingOffsets": _offsets_json(ranges, lambda read: read.end),
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": "true",
    }


@contextmanager
def kafka_by_v2(spark: SparkSession) -> Generator[None]:
    """In the block, Spark reads and writes Kafka by its newer interface."""
    names = (spark.conf.get(_V1_SOURCES) or "").split(",")
    others = ",".join(name for name in names if name.strip().lower() != "kafka")
    with session_setting(spark, _V1_SOURCES, others):
        yield


def _offsets_json(ranges: Sequence[OffsetRange], bound: Callable[[OffsetRange], int]) -> str:
    offsets: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for read in ranges:
        offsets[read.data.topic][str(read.data.partition)] = bound(read)
    return json.dumps(offsets)


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
