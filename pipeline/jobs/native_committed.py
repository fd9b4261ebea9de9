"""Reads the records that native transactions left visible, by aborted-index, as a DataFrame.

*Source*: docs/protocols F3, F4.

*Invariants*: the call fixes all offsets, so every evaluation of a frame gives the same; every
returned record is covered by the index (F4). Coordinated transactions are not filtered:
`connectors.spark.read_committed` does that to a frame with headers.

Refuses: an index that is missing, behind, not whole, or of a former topic. Blocks; may be called
from a notebook.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_topic_names
from stilltide.connectors.spark.errors import check_classic, spark_errors
from stilltide.connectors.spark.read_committed import RangeColumns, without_aborted
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.drivers.native.evidence import NativeEvidence, gather_native
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.schemas.values import OffsetRange


def read_native_committed(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    topics: Sequence[str],
    *,
    ranges: Sequence[OffsetRange] | None = None,
    headers: bool = True,
) -> DataFrame:
    """The records of `topics` that Kafka's read_committed would show, of schema `KAFKA_DDL`.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        bootstrap_servers: the cluster; `stilltide index` has indexed the topics.
        topics: names of topics, at least one.
        ranges: offsets to read, each partition at most once, ends at or below the last stable
            offset; by default every partition from its log start to its last stable offset.
        headers: whether the frame has the column `headers`; a frame without it is much faster.

    Raises:
        AbortedIndexError: the index does not cover the offsets to read, or is not whole.
        FatalError: a topic does not exist, a range ends above the last stable offset, or Spark
            fails.
        OffsetOutOfRangeError: a range begins below its log start.
        DecodeError: a record of aborted-index cannot be decoded.
        RetriableError: the broker is away, or a topic was created again meanwhile.
    """
    check_topic_names(topics)
    check_classic(spark)
    connector = KafkaConnector(config_of(bootstrap_servers))
    evidence = run_blocking(gather_native(connector, topics, ranges))
    evidence.check()
    with spark_errors(bootstrap_servers, topics):
        reads = evidence.data  # empty ranges too: Spark needs at least one partition for a frame
        return native_committed(spark, bootstrap_servers, evidence, reads, headers=headers)


def native_committed(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    evidence: NativeEvidence,
    reads: Sequence[OffsetRange],
    *,
    headers: bool = True,
) -> DataFrame:
    """The visible records of `reads`, each of which must be part of `evidence.covered()`."""
    records = read_ranges(spark, bootstrap_servers, reads, committed=False, headers=headers)
    columns = {
        data: RangeColumns(ranges.firsts, ranges.ends) for data, ranges in evidence.aborted.items()
    }
    return without_aborted(records, reads, columns)
