"""What native transactions left visible, as a DataFrame, by the index instead of the broker's word.

*Source*: protocols.md F3, F4; facts: spark.md 2, 3.2.

*Invariants*: offsets are explicit and fixed by the call, so every evaluation of a frame gives the
same; nothing is returned that the index does not cover (F4). Coordinated transactions are not
looked at: `connectors.spark.read_committed` goes on from a frame with headers.

Refuses: an index that is missing, behind, not whole, or of a former topic. Blocks; may be called
from a notebook.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.spark.aborted_ranges import RangeColumns, without_aborted
from stilltide.connectors.spark.errors import spark_errors
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
        topics: at least one.
        ranges: read these, each partition at most once, ends at or below the last stable offset;
            by default every partition from its log start to its last stable offset.
        headers: whether the frame has that column; without, it is quicker by far.

    Raises:
        AbortedIndexError: the index does not cover what is to be read, or is not whole.
        FatalError: a topic does not exist, a range ends above the last stable offset, or Spark
            fails.
        OffsetOutOfRangeError: a range begins below its log start.
        DecodeError: a record of aborted-index is none of it.
        RetriableError: the broker is away, or a topic was created anew meanwhile.
    """
    assert topics, "nothing to read"
    connector = KafkaConnector(config_of(bootstrap_servers))
    evidence = run_blocking(gather_native(connector, topics, ranges))
    evidence.check()
    with spark_errors(bootstrap_servers):
        reads = evidence.data  # those without records too: a frame must come from some partition
        return native_committed(spark, bootstrap_servers, evidence, reads, headers=headers)


def native_committed(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    evidence: NativeEvidence,
    reads: Sequence[OffsetRange],
    *,
    headers: bool = True,
) -> DataFrame:
    """The same of `reads`, for evidence that covers them: parts of `evidence.covered()`."""
    records = read_ranges(spark, bootstrap_servers, reads, committed=False, headers=headers)
    columns = {
        data: RangeColumns(found.firsts, found.ends) for data, found in evidence.aborted.items()
    }
    return without_aborted(records, reads, columns)
