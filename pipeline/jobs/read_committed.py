"""Reads the committed records of topics as a DataFrame.

*Source*: docs/protocols D1-D4, E4, E7.

*Invariants*: a partition is read up to its first undecided record as of the call, as by a
subscription; the call fixes the bounds, so every evaluation of the frame gives the same.

Refuses: what `gather_evidence` refuses. Blocks; may be called from a notebook.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.read_committed import (
    VISIBILITY,
    Decisions,
    Visibility,
    classify,
    committed,
    with_txn,
)
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.drivers.native.evidence import gather_native
from stilltide.pipeline.drivers.snapshots.client import connect_snapshots
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes, gather_evidence
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.values import EndOffset, OffsetRange, TopicPartition

SNAPSHOT_TIMEOUT_S = 30.0

ReadRanges = Callable[[Sequence[OffsetRange]], DataFrame]
"""Reads the records of ranges that native transactions left visible."""


def read_committed(
    spark: SparkSession,
    bootstrap_servers: Cluster,
    topics: Sequence[str],
    *,
    take_snapshot: bool = False,
    snapshot_timeout_s: float = SNAPSHOT_TIMEOUT_S,
    by_index: bool = False,
) -> DataFrame:
    """The committed records of `topics`: Kafka's columns, and `txn` in the place of `headers`.

    The `txn` of plain records is null. The call scans the records past the last snapshot for the
    first undecided record, so a fresh snapshot makes the call cheap and complete.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        bootstrap_servers: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        topics: names of topics, at least one.
        take_snapshot: whether to ask the cluster's workers for a snapshot of each partition first.
        snapshot_timeout_s: how long the snapshots may take.
        by_index: whether records of aborted native transactions are left out by aborted-index, as
            `read_native_committed` does, instead of by the Kafka client.

    Raises:
        FatalError: a topic does not exist, or Spark fails.
        SnapshotError: outcomes have a gap; see `gather_evidence`.
        AbortedIndexError: with `by_index`: the index does not cover the topics.
        RequestTimeoutError: no worker took the snapshots in time.
        RetriableError, UnavailableError: the broker is away.
    """
    assert topics, "nothing to read"
    connector = KafkaConnector(config_of(bootstrap_servers))
    if take_snapshot:
        run_blocking(_take_snapshots(connector, topics, snapshot_timeout_s))
    evidence = run_blocking(gather_evidence(connector, topics))
    read: ReadRanges = partial(read_ranges, spark, bootstrap_servers)
    if by_index:
        native = run_blocking(gather_native(connector, topics, evidence.data))
        native.check()
        read = partial(native_committed, spark, bootstrap_servers, native)
    with spark_errors(bootstrap_servers):
        decisions = decisions_of(spark, evidence, audited=False)
        return committed(read(decided_ranges(read, evidence, decisions)), decisions)


def decided_ranges(
    read: ReadRanges, evidence: TopicOutcomes, decisions: Decisions
) -> list[OffsetRange]:
    """Each partition up to its first undecided record; nothing below M is undecided (D4)."""
    tails = [tail for tail in map(evidence.undecided_tail, evidence.data) if tail.start < tail.end]
    first: dict[TopicPartition, EndOffset] = {}
    if tails:
        found = (
            classify(with_txn(read(tails)), decisions)
            .filter(F.col(VISIBILITY) == Visibility.UNDECIDED)
            .groupBy("topic", "partition")
            .agg(F.min("offset").alias("offset"))
        )
        for row in found.collect():
            first[TopicPartition(row["topic"], row["partition"])] = EndOffset(row["offset"])
    return [one._replace(end=first.get(one.data, one.end)) for one in evidence.data]


async def _take_snapshots(connector: Connector, topics: Sequence[str], timeout_s: float) -> None:
    admin = connector.admin()
    try:
        described = await admin.describe_topics(topics)
    finally:
        await admin.close()
    partitions = [
        TopicPartition(topic.name, number)
        for topic in described.values()
        for number in range(topic.partition_count)
    ]
    async with connect_snapshots(connector, "read-committed", timeout_s=timeout_s) as line:
        await asyncio.gather(*map(line.take, partitions))
