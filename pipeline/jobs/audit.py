"""The audit: do topics hold exactly the records that transactions committed?

*Source*: protocols.md C6 (verifiable transactions), D1-D3, D6; facts: spark.md 3.1 and 6.

The data is read once, grouped to one row for each (partition, transaction, visibility); every
count, digest and finding comes from those groups. A blocking job: call it from a thread in asyncio
code.

*Invariants*: all bounds are resolved before the first read (`pipeline.drivers.evidence`); a record
that cannot be judged makes the verdict unknown, never valid; a transaction whose count nothing
promises any more, because a snapshot has absorbed its marker, is counted as unchecked.

Refuses: topics that do not exist, and evidence with a gap. It cannot tell what
compaction of a user topic removed from what was lost: there, `missing` is expected.
"""

import time
from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from connectors.local.jars import spark_jars
from connectors.spark.errors import spark_errors
from connectors.spark.read_committed import (
    VISIBILITY,
    Visibility,
    digest_of_sums,
)
from connectors.spark.session import SparkOptions, spark_session
from connectors.spark.source import read_ranges
from pipeline.drivers.evidence import Evidence, Progress, gather_evidence
from pipeline.jobs.audit_result import AuditResult, Finding, FindingKind, PartitionAudit
from pipeline.jobs.blocking import run_blocking
from pipeline.jobs.findings import Unmarked, collect_findings, find_unmarked, group_records
from pipeline.jobs.outcomes import decisions_of, mixed_transactions, of_current_topic
from schemas.values import OffsetRange, TopicPartition, TxnId

EVIDENCE_MAX = 20
"""Findings of each kind that are listed unless told otherwise; all are counted."""


def audit(
    bootstrap_servers: str,
    topics: Sequence[str],
    *,
    spark_options: SparkOptions | None = None,
    evidence_max: int = EVIDENCE_MAX,
    progress: Progress = lambda _: None,
) -> AuditResult:
    """Audits `topics` up to their last stable offsets as of the call; blocks.

    Args:
        bootstrap_servers: the cluster.
        topics: at least one.
        spark_options: how to run Spark; by default on all cores, with the cached jars. Ignored
            when the process has an active session.
        evidence_max: findings listed of each kind, >= 0.
        progress: told what begins.

    Raises:
        FatalError: a topic does not exist, records were deleted during the read, Spark fails.
        RetriableError: the broker is away.
        SnapshotError: outcomes have a gap; see `gather_evidence`.
        DecodeError: a record of txn-markers or txn-snapshots is none of it.
        JavaMissingError, JarsError: Spark cannot be started.
    """
    assert topics, "nothing to audit"
    began_s = time.monotonic()
    progress(f"resolving offsets on {bootstrap_servers}")
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap_servers))
    evidence = run_blocking(gather_evidence(connector, topics, progress))
    progress("starting Spark")
    options = spark_options or SparkOptions(jars=spark_jars())
    with spark_session(options) as spark, spark_errors(bootstrap_servers):
        records = read_ranges(spark, bootstrap_servers, evidence.data)
        offsets = sum(read.end - read.start for read in evidence.data)
        progress(f"reading {offsets} offsets of {len(evidence.data)} partitions")
        decisions = decisions_of(spark, evidence)
        groups = group_records(records, decisions).persist()
        try:
            partitions = _partition_audits(groups, evidence)
            progress("checking that transactions are complete")
            counts, findings = collect_findings(groups, decisions.outcomes, evidence_max)
            unmarked = Unmarked(0, 0, 0, ())
            if evidence.snapshots:
                unmarked = find_unmarked(groups, decisions.outcomes, evidence_max)
        finally:
            groups.unpersist()
    mixed = mixed_transactions(evidence)
    if mixed or unmarked.mixed_count:
        counts[FindingKind.MIXED] = len(mixed) + unmarked.mixed_count
    committed, aborted = _distinct_transactions(evidence)
    return AuditResult(
        partitions=partitions,
        transactions_committed=committed + unmarked.uncounted,
        transactions_aborted=aborted,
        transactions_unchecked=unmarked.total,
        finding_counts=dict(counts),
        findings=(*findings, *map(_mixed, [*mixed, *unmarked.mixed][:evidence_max])),
        elapsed_s=time.monotonic() - began_s,
    )


def _partition_audits(groups: DataFrame, evidence: Evidence) -> tuple[PartitionAudit, ...]:
    sums = [F.sum(name).alias(name) for name in ("rows", "digest_high", "digest_low")]
    found: dict[TopicPartition, dict[str, Row]] = {read.data: {} for read in evidence.data}
    for row in groups.groupBy("topic", "partition", VISIBILITY).agg(*sums).collect():
        found[TopicPartition(row["topic"], row["partition"])][row[VISIBILITY]] = row
    return tuple(_partition_audit(read, found[read.data]) for read in evidence.data)


def _partition_audit(read: OffsetRange, found: dict[str, Row]) -> PartitionAudit:
    rows = {kind: found[kind]["rows"] if kind in found else 0 for kind in Visibility}
    return PartitionAudit(
        topic=read.data.topic,
        partition=read.data.partition,
        start_offset=read.start,
        end_offset=read.end,
        written=sum(rows.values()),
        visible=rows[Visibility.VISIBLE] + rows[Visibility.PLAIN],
        hidden=rows[Visibility.HIDDEN],
        undecided=rows[Visibility.UNDECIDED],
        malformed=rows[Visibility.MALFORMED],
        late=rows[Visibility.LATE],
        plain=rows[Visibility.PLAIN],
        digest=sum(digest_of_sums(row["digest_high"], row["digest_low"]) for row in found.values()),
    )


def _mixed(txn: TxnId) -> Finding:
    return Finding(FindingKind.MIXED, None, None, None, txn, None, None)


def _distinct_transactions(evidence: Evidence) -> tuple[int, int]:
    """How many have committed as markers say, and aborted as markers or snapshots say."""
    current = [marker for marker in evidence.markers if of_current_topic(marker, evidence)]
    committed = {marker.txn for marker in current if marker.committed}
    aborted: defaultdict[int, set[int]] = defaultdict(set)
    for marker in current:
        if not marker.committed:
            aborted[marker.txn.coordinator].add(marker.txn.sequence)
    for found in evidence.snapshots.values():
        for coordinator, held in found.aborted.by_coordinator().items():
            aborted[coordinator] |= held
    return len(committed), sum(map(len, aborted.values()))
