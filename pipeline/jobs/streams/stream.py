"""Streaming queries over committed records, with Spark's own checkpoint.

*Source*: docs/protocols K6.

*Invariants*: a batch that is repeated has the same number and the same records, so a sink that
stores the number with the data, such as Delta by `txnVersion`, holds each record once.

Refuses: a checkpoint of other topics, of a topic that was created again, below a log start; limits
that this version of PySpark does not have.
"""

import os
import sys
from collections.abc import Callable, Sequence

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_text, check_topic_names
from stilltide.connectors.spark.errors import check_session, spark_errors
from stilltide.connectors.spark.read_committed import committed
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.core.tables.increments import Increments
from stilltide.pipeline.errors import ConfigError
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.pipeline.jobs.streams.source import (
    HAS_AVAILABLE_NOW,
    SOURCE,
    BoundsSource,
    SourceOptions,
    last_offset,
)
from stilltide.pipeline.jobs.tables.batches import RECORDS_MAX, TopicEvidence
from stilltide.pipeline.jobs.tables.target import TableFormat, TableTarget, files_of
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

_UNLIMITED = 2**62

Handle = Callable[[DataFrame, int], None]
"""Stores the records of a batch; called with the frame and the batch's number, from 0 on."""


def stream(
    spark: SparkSession,
    cluster: Cluster,
    topics: Sequence[str],
    handle: Handle,
    *,
    checkpoint: str,
    records_max: int | None = None,
    every_s: float = 2.0,
    available_now: bool = False,
    by_index: bool = False,
    headers: bool = False,
    name: str | None = None,
) -> StreamingQuery:
    """Starts a query that calls `handle` with the committed records, batch after batch.

    After a crash the last batch may be repeated, with the same number and records: store the number
    with the data. The package has to be installed where Spark's Python processes run.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        cluster: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        topics: names of topics, at least one.
        handle: as the function of Spark's `foreachBatch`; the frame is as of `committed_batches`.
        checkpoint: a path or URI, as Spark's `checkpointLocation`.
        records_max: approximate limit of offsets in a batch; by default `RECORDS_MAX`, and none
            with `available_now` before PySpark 4.2.
        every_s: seconds from the begin of a batch to the next one, if it takes less.
        available_now: whether the query ends when what is decided now is stored.
        by_index: as of `committed_batches`.
        headers: as of `committed_batches`.
        name: the query's name in Spark.

    Raises:
        ConfigError: `records_max` with `available_now` before PySpark 4.2.
        TableError: the checkpoint is of something else, or records were deleted meanwhile.
        FatalError, SnapshotError, DecodeError, RetriableError: as `committed_batches`.
    """
    _check(spark, topics, handle, checkpoint)
    limit = _limit(records_max, available_now=available_now)
    begun = last_offset(files_of(spark, TableTarget(TableFormat.PARQUET, checkpoint)))
    options = SourceOptions(config_of(cluster), sorted(set(topics)), limit, by_index, begun)
    _check_begun(options)
    with spark_errors(cluster, topics):
        bounds = _source(spark).options(**options.to_dict()).load()
        each = _BatchHandler(spark, options, handle, headers=headers)
        writer = bounds.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint)
        every = {"processingTime": f"{every_s:g} seconds"}
        when = {"availableNow": True} if available_now else every
        return writer.trigger(**when).start(queryName=name)  # type: ignore[arg-type]


class _BatchHandler:
    """Reads the records of a batch's bounds; its connections stay open from batch to batch."""

    def __init__(
        self, spark: SparkSession, options: SourceOptions, handle: Handle, *, headers: bool
    ) -> None:
        self._headers = headers
        self._spark = spark
        self._options = options
        self._handle = handle
        self._evidence: TopicEvidence | None = None

    def __call__(self, bounds: DataFrame, number: int) -> None:
        """Calls the handle; a batch without bounds has nothing to store."""
        reads = [
            OffsetRange(
                TopicPartition(row["topic"], row["partition"]),
                Offset(row["first"]),
                EndOffset(row["until"]),
            )
            for row in bounds.collect()
        ]
        if not reads:
            return
        try:
            self._handle(self._frame(reads), number)
        except BaseException:
            self._close()
            raise

    def _frame(self, reads: Sequence[OffsetRange]) -> DataFrame:
        config, topics = self._options.config, self._options.topics
        if self._evidence is None:
            connector = KafkaConnector(config)
            evidence = TopicEvidence(connector, list(topics), by_index=self._options.by_index)
            self._evidence = evidence.__enter__()
        known = self._evidence.read_on()
        decisions = decisions_of(self._spark, known.outcomes, reads, audited=False)
        if known.native is None:
            records = read_ranges(self._spark, config, reads)
        else:
            records = native_committed(self._spark, config, known.native, reads)
        return committed(records, decisions, headers=self._headers)

    def _close(self) -> None:
        evidence, self._evidence = self._evidence, None
        if evidence is not None:
            evidence.__exit__(None, None, None)


def _check(spark: SparkSession, topics: object, handle: object, checkpoint: object) -> None:
    """Passes arguments of the right types; raises as `stream`."""
    check_topic_names(topics)
    check_session(spark)
    if not callable(handle):
        raise ConfigError(f"`handle` is a {type(handle).__name__}", hint="give a function")
    check_text(checkpoint, "`checkpoint`")


def _limit(records_max: int | None, *, available_now: bool) -> int:
    if records_max is None:
        return _UNLIMITED if available_now and not HAS_AVAILABLE_NOW else RECORDS_MAX
    if available_now and not HAS_AVAILABLE_NOW:
        raise ConfigError(
            f"PySpark {pyspark.__version__} has no limit of batches with available_now",
            detail="it reads everything in one batch",
            hint="leave records_max out, use PySpark 4.2 or later, or `append_committed`, which has"
            " the limit on every version",
        )
    return records_max


def _check_begun(options: SourceOptions) -> None:
    """Raises here what would otherwise end the query later, without its type."""
    connector = KafkaConnector(options.config)
    increments = Increments(options.topics, options.begun.progress, options.records_max)
    with TopicEvidence(connector, list(options.topics), by_index=options.by_index) as evidence:
        increments.bounds_read(evidence.read_on().bounds())


def _source(spark: SparkSession) -> DataStreamReader:
    """A local session runs the source by this Python, not by the first one on the PATH."""
    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and str(context.master).startswith("local"):
        context.pythonExec = sys.executable
    spark.dataSource.register(BoundsSource)
    return spark.readStream.format(SOURCE)
