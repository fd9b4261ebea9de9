"""Reads the committed records of topics as a DataFrame.

*Source*: docs/protocols D1, D2, D3, D4, E4, E7.

*Invariants*: a partition is read up to its first undecided record as of the call, as by a
subscription; the call fixes the bounds, so every evaluation of the frame gives the same.

Refuses: what `gather_evidence` refuses. Blocks; may be called from a notebook.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.names import check_topic_names
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.spark.errors import check_classic, spark_errors
from stilltide.connectors.spark.read_committed import (
    VISIBILITY,
    DecidingFrames,
    Visibility,
    classify,
    committed,
    with_txn,
)
from stilltide.connectors.spark.source import planned_once, read_ranges
from stilltide.pipeline.drivers.native.evidence import NativeEvidence, gather_native
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.drivers.snapshots.outcomes import Progress, TopicOutcomes, gather_evidence
from stilltide.pipeline.jobs.blocking import SlowSteps, run_blocking
from stilltide.pipeline.jobs.bounds import Bound, extent, narrowed, resolved
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.topics import ABORTED_INDEX
from stilltide.schemas.values import EndOffset, OffsetRange, TopicPartition

log = get_logger(__name__)

SNAPSHOT_TIMEOUT_S = 30.0

ONCE_MIN = 100_000
"""Outcomes that are broadcast once for all actions on a frame: a second broadcast of fewer takes no
longer than a tenth of a second, and the frame stays open to Spark's planning."""

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
    start: Bound | None = None,
    end: Bound | None = None,
    by_time: bool = False,
    headers: bool = False,
) -> DataFrame:
    """The committed records of `topics`: Kafka's columns, and `txn`, null for plain records.

    The call scans the records past the last snapshot for the first undecided record, so a fresh
    snapshot makes the call cheap and complete. It broadcasts `ONCE_MIN` outcomes or more itself,
    and logs a step that takes longer than `SLOW_S`.

    Args:
        spark: a session with the Kafka source's jars (`connectors.spark.session`).
        bootstrap_servers: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        topics: names of topics, at least one.
        take_snapshot: whether to ask the workers for a snapshot of each partition first.
        snapshot_timeout_s: how long the snapshots may take.
        by_index: whether aborted native records are left out by aborted-index, not by Kafka.
        start: where to begin, by default at the log starts; see `pipeline.jobs.bounds.Bound`.
        end: where to end, exclusive, by default at the last stable offsets.
        by_time: whether numbers in `start` and `end` are milliseconds since 1970.
        headers: whether to keep the headers of applications.

    Raises:
        ConfigError, OffsetOutOfRangeError: the logs do not hold what is between `start` and `end`.
        FatalError: a topic does not exist, or Spark fails.
        SnapshotError: outcomes have a gap; see `gather_evidence`.
        AbortedIndexError: with `by_index`: the index does not cover the topics.
        RequestTimeoutError, RetriableError, UnavailableError: no worker, or no broker, answers.
    """
    check_topic_names(topics)
    check_classic(spark)
    connector = KafkaConnector(config_of(bootstrap_servers))
    with SlowSteps(_say) as progress:
        if take_snapshot:
            run_blocking(_take_snapshots(connector, topics, snapshot_timeout_s, progress.step))
        gathering = _gather(connector, topics, start, end, progress.step, by_time=by_time)
        evidence = run_blocking(gathering)
        index = run_blocking(_index(connector, evidence, progress.step)) if by_index else None
        read = _reader(spark, bootstrap_servers, index)
        with spark_errors(bootstrap_servers, topics):
            return _frame(spark, read, evidence, progress.step, headers=headers)


async def _index(
    connector: Connector, evidence: TopicOutcomes, progress: Progress
) -> NativeEvidence:
    progress(f"reading {ABORTED_INDEX}")
    return await gather_native(connector, sorted(evidence.topic_ids), evidence.data)


def _reader(spark: SparkSession, cluster: Cluster, index: NativeEvidence | None) -> ReadRanges:
    """Reads without aborted native records, by aborted-index or by Kafka's client."""
    if index is None:
        return partial(read_ranges, spark, cluster)
    index.check()
    return partial(native_committed, spark, cluster, index)


def _say(step: str) -> None:
    log.info("read_committed_waits", step=step)


def _frame(
    spark: SparkSession,
    read: ReadRanges,
    evidence: TopicOutcomes,
    progress: Progress,
    *,
    headers: bool,
) -> DataFrame:
    reads = list(evidence.data)
    if tails := undecided_tails(evidence):
        progress(f"looking for undecided records past the last snapshots: {extent(tails)}")
        decisions = decisions_of(spark, evidence, tails, audited=False)
        reads = decided_ranges(read, evidence, decisions)
    progress("handing the outcomes to Spark")
    decisions = decisions_of(spark, evidence, reads, audited=False)
    return committed_once(read(reads), decisions, headers=headers)


def committed_once(
    records: DataFrame,
    decisions: DecidingFrames,
    *,
    headers: bool = False,
    once_min: int = ONCE_MIN,
) -> DataFrame:
    """As `committed`, for several actions: many outcomes are broadcast here, and not again.

    Args:
        records: as of `committed`.
        decisions: as of `committed`.
        headers: as of `committed`.
        once_min: fewest outcomes that are broadcast once.
    """
    frame = committed(records, decisions, headers=headers)
    # The stages of a shuffle would run at once, with all records in them.
    if decisions.shuffled or decisions.outcome_count < once_min:
        return frame
    return planned_once(frame)


def undecided_tails(evidence: TopicOutcomes) -> list[OffsetRange]:
    """The parts of partitions, none of them empty, in which records may be undecided."""
    tails = map(evidence.undecided_tail, evidence.data)
    return [tail for tail in tails if tail.start < tail.end]


def decided_ranges(
    read: ReadRanges, evidence: TopicOutcomes, decisions: DecidingFrames
) -> list[OffsetRange]:
    """Each partition up to its first undecided record; nothing below M is undecided (D4)."""
    tails = undecided_tails(evidence)
    first: dict[TopicPartition, EndOffset] = {}
    if tails:
        undecided = (
            classify(with_txn(read(tails)), decisions)
            .filter(F.col(VISIBILITY) == Visibility.UNDECIDED)
            .groupBy("topic", "partition")
            .agg(F.min("offset").alias("offset"))
        )
        for row in undecided.collect():
            first[TopicPartition(row["topic"], row["partition"])] = EndOffset(row["offset"])
    return [one._replace(end=first.get(one.data, one.end)) for one in evidence.data]


async def _gather(
    connector: Connector,
    topics: Sequence[str],
    start: Bound | None,
    end: Bound | None,
    progress: Progress,
    *,
    by_time: bool,
) -> TopicOutcomes:
    """The evidence, whose `data` are the ranges to read."""
    progress(f"looking for the ends of {', '.join(topics)}")
    evidence = await gather_evidence(connector, topics, progress)
    if start is None and end is None:
        return evidence
    async with closing(connector.admin()) as admin:
        first = await resolved(admin, evidence.data, start, by_time=by_time)
        until = await resolved(admin, evidence.data, end, by_time=by_time)
    return replace(evidence, data=narrowed(evidence.data, first, until))


async def _take_snapshots(
    connector: Connector, topics: Sequence[str], timeout_s: float, progress: Progress
) -> None:
    progress("waiting for a worker's snapshots")
    async with closing(connector.admin()) as admin:
        described = await admin.describe_topics(topics)
    partitions = [
        TopicPartition(topic.name, number)
        for topic in described.values()
        for number in range(topic.partition_count)
    ]
    async with SnapshotLine(connector, "read-committed", timeout_s=timeout_s) as line:
        await asyncio.gather(*map(line.take, partitions))
