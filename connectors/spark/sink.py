"""Writes frames to a topic by Spark's own Kafka sink, with a transaction's header on each record.

*Source*: docs/protocols L9. No record passes through Python.

*Invariants*: `is_clean` is true only if each task that wrote ran once and ended well, so that all
its records are durable, and no producer of a lost or killed task can write any more.

Refuses frames of streams, frames without a column `value`, and options that a promise rests on.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows
from pyspark.sql import types as T  # noqa: N812 - as above

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.security import java_options
from stilltide.connectors.spark.read_committed import with_txn
from stilltide.connectors.spark.source import kafka_by_v2, read_ranges
from stilltide.schemas.headers import TXN
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId

_HEADERS = T.ArrayType(T.StructType().add("key", T.StringType()).add("value", T.BinaryType()))
_OURS = ("acks", "bootstrap.servers", "enable.idempotence", "transactional.id")
"""Options of the producer that callers may not set: what was acknowledged is counted on."""

_POLL_S, _SETTLED_S = 0.05, 10.0
"""How often, and how long, Spark is asked whether tasks still run after their job has ended. Tasks
that run on count as not ended well."""

_QUERY, _NUMBER = "sql.streaming.queryId", "streaming.sql.batchId"
"""Properties of the thread that runs a batch of a streaming query; the id is in its checkpoint."""

_TAKEN = "records with a header `txn`"


class SinkRun(NamedTuple):
    """What a job of the sink did.

    Attributes:
        rows: number of rows of the frame, each counted once.
        is_clean: whether each task that wrote ran once and ended well.
    """

    rows: int
    is_clean: bool


class Stands(NamedTuple):
    """What stands of a transaction on a partition: `records` of them in `[first, end)`."""

    first: Offset
    end: EndOffset
    records: int


def sink_columns(frame: DataFrame) -> list[str]:
    """The columns that the sink takes: `value`, and of `key`, `headers`, `partition` what is there.

    Raises:
        FatalError: the frame is of a stream, or has no column `value`.
    """
    if frame.isStreaming:
        raise FatalError(
            "the frame is of a streaming query",
            hint="call `write` in the function of `foreachBatch`, with its batch number",
        )
    if "value" not in frame.columns:
        raise FatalError(
            "the frame has no column `value`",
            detail=f"its columns are {', '.join(frame.columns)}",
            hint="name the records' content `value`, and their keys `key`, as bytes or text",
        )
    return [name for name in ("key", "value", "headers", "partition") if name in frame.columns]


class QueryBatch(NamedTuple):
    """The batch of a streaming query that a thread runs.

    Attributes:
        query: Spark's id of the query, which its checkpoint keeps; empty: the thread runs none.
        checkpoint: address of the checkpoint; empty: not known.
        offsets: the file in the checkpoint that says what the batch holds. Spark writes it before
            the batch is run, and not again when the batch is repeated.
    """

    query: str = ""
    checkpoint: str = ""
    offsets: str = ""


def query_batch(spark: SparkSession) -> QueryBatch:
    """The batch that this thread runs."""
    context = spark.sparkContext
    query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_NUMBER)
    if not query or not number:
        return QueryBatch(query or "")
    jvm, session = cast("Any", spark._jvm), cast("Any", spark)._jsparkSession  # noqa: SLF001 - PySpark does not say where a query has its checkpoint
    try:
        running = session.sharedState().activeStreamingQueries()
        checkpoint = running.get(jvm.java.util.UUID.fromString(query)).resolvedCheckpointRoot()
    except (Py4JError, AttributeError):  # a version of Spark whose classes differ
        return QueryBatch(query)
    return QueryBatch(query, str(checkpoint), f"offsets/{int(number)}")


def check_options(options: Mapping[str, str]) -> None:
    """Passes options of the producer, such as `compression.type`; raises `FatalError`."""
    taken = sorted(name for name in options if name.removeprefix("kafka.") in _OURS)
    if taken:
        raise FatalError(f"the option {taken[0]} is Stilltide's own", hint="leave it out")


def write_records(
    frame: DataFrame, cluster: Cluster, topic: str, txn: TxnId, options: Mapping[str, str]
) -> SinkRun:
    """Writes all rows; some may be written twice or late if the run is not clean (L9).

    Args:
        frame: as `sink_columns` takes it.
        cluster: the cluster.
        topic: where to write.
        txn: the transaction, registered with all partitions of the topic.
        options: more options of the producer, as `check_options` passes them.
    """
    spark = frame.sparkSession
    columns = sink_columns(frame)
    counted = Observation(f"stilltide-write-{uuid4().hex}")
    headers = _with_header(txn, others="headers" in columns)
    kept = [F.col(name) for name in columns if name != "headers"]
    records = frame.select(*kept, headers.alias("headers"))
    observed = records.observe(counted, F.count(F.lit(1)).alias("rows"))
    config = config_of(cluster)
    made = {name.removeprefix("kafka."): value for name, value in options.items()}
    made |= java_options(config.extra)
    made |= {"bootstrap.servers": config.bootstrap_servers}
    made |= {"acks": "all", "enable.idempotence": "true"}
    writer = observed.write.format("kafka").mode("append").option("topic", topic)
    writer = writer.options(**{f"kafka.{name}": value for name, value in made.items()})
    with (
        _tagged(spark) as tag,
        kafka_by_v2(spark),
    ):  # by Spark's older interface nothing is observed
        writer.save()
    return SinkRun(int(counted.get["rows"]), _ended_well(spark, tag))


def count_records(
    spark: SparkSession, cluster: Cluster, ranges: list[OffsetRange], txn: TxnId
) -> dict[TopicPartition, Stands]:
    """The records of a transaction in these ranges, by partition."""
    records = with_txn(read_ranges(spark, cluster, ranges, committed=False))
    counted = (
        records.filter(F.col(TXN) == F.lit(bytearray(txn.to_bytes())))
        .groupBy("topic", "partition")
        .agg(
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
            F.count(F.lit(1)).alias("records"),
        )
    )
    return {
        TopicPartition(row["topic"], row["partition"]): Stands(
            Offset(row["first"]), EndOffset(row["last"] + 1), row["records"]
        )
        for row in counted.collect()
    }


def _with_header(txn: TxnId, *, others: bool) -> Column:
    value = F.lit(bytearray(txn.to_bytes()))
    ours = F.array(F.struct(F.lit(TXN).alias("key"), value.alias("value"))).cast(_HEADERS)
    if not others:
        return ours
    theirs = F.coalesce(F.col("headers").cast(_HEADERS), F.array().cast(_HEADERS))
    doubled = F.exists(theirs, lambda header: header["key"] == TXN)
    return F.when(doubled, F.raise_error(F.lit(_TAKEN))).otherwise(F.concat(ours, theirs))


@contextmanager
def _tagged(spark: SparkSession) -> Generator[str]:
    """Tags the jobs of the block; their group stays that of the caller, such as a query."""
    tag = f"stilltide-{uuid4().hex}"
    spark.sparkContext.addJobTag(tag)
    try:
        yield tag
    finally:
        spark.sparkContext.removeJobTag(tag)


def _ended_well(spark: SparkSession, tag: str) -> bool:
    """Whether the tasks of the last stage of each job ran once; False if Spark does not tell."""
    until = time.monotonic() + _SETTLED_S
    while True:
        stages = _last_stages(spark, tag)
        if stages and all(stage.status().toString() == "COMPLETE" for stage in stages):
            if any(_failed(stage) for stage in stages):
                return False
            if not any(stage.numActiveTasks() for stage in stages):
                return True
        if time.monotonic() > until:
            return False
        time.sleep(_POLL_S)


def _last_stages(spark: SparkSession, tag: str) -> list[Any]:
    """The writing stages; none while Spark's listener has not heard of the end of each job."""
    context: Any = spark.sparkContext._jsc  # noqa: SLF001 - PySpark's tracker tells no killed tasks
    store = context.sc().statusStore()
    jobs = [store.job(number) for number in context.sc().statusTracker().getJobIdsForTag(tag)]
    if any(job.status().toString() != "SUCCEEDED" for job in jobs):
        return []
    stages: list[Any] = []
    for job in jobs:
        ids = job.stageIds()
        last = max(int(ids.apply(at)) for at in range(ids.size()))
        stages.append(store.lastStageAttempt(last))
    return stages


def _failed(stage: Any) -> bool:
    return bool(stage.attemptId() or stage.numFailedTasks() or stage.numKilledTasks())
