"""The audit: do topics hold exactly the records that transactions committed?

*Source*: protocols.md C6 (verifiable transactions), D1-D3, D6; facts: spark.md 3.1 and 6.

The data is read once, grouped to one row for each (partition, transaction, visibility); every
count, digest and finding comes from those groups. A blocking job: call it from a thread in asyncio
code.

*Invariants*: all bounds are resolved before the first read (`pipeline.jobs.scope`); what cannot be
proven makes the verdict unknown, never valid.

Refuses: topics that do not exist, records of txn-markers that are no markers. It cannot tell what
compaction of a user topic removed from what was lost: there, `missing` is expected.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from connectors.base import LogAdmin
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
from connectors.spark.source import OffsetRange, read_ranges
from pipeline.jobs.audit_result import AuditResult, Finding, FindingKind, PartitionAudit
from pipeline.jobs.findings import collect_findings, group_records
from pipeline.jobs.outcomes import (
    mixed_transactions,
    of_current_topic,
    outcomes_frame,
    read_markers,
)
from pipeline.jobs.scope import Scope, resolve_scope
from schemas.markers import Marker
from schemas.values import TopicPartition, TxnId

Progress = Callable[[str], None]
"""Called with one line each time the audit begins something that takes time."""

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
        DecodeError: a record of txn-markers is no marker.
        JavaMissingError, JarsError: Spark cannot be started.
    """
    assert topics, "nothing to audit"
    began_s = time.monotonic()
    progress(f"resolving offsets on {bootstrap_servers}")
    scope = asyncio.run(_resolve(bootstrap_servers, topics))
    progress("starting Spark")
    options = spark_options or SparkOptions(jars=spark_jars())
    with spark_session(options) as spark, spark_errors(bootstrap_servers):
        progress(f"reading outcomes from {len(scope.markers)} partitions")
        markers = read_markers(spark, bootstrap_servers, scope)
        records = read_ranges(spark, bootstrap_servers, scope.data)
        offsets = sum(read.end - read.start for read in scope.data)
        progress(f"reading {offsets} offsets of {len(scope.data)} partitions")
        outcomes = outcomes_frame(spark, markers, scope)
        groups = group_records(records, outcomes).persist()
        try:
            partitions = _partition_audits(groups, scope)
            progress("checking that transactions are complete")
            counts, findings = collect_findings(groups, outcomes, evidence_max)
        finally:
            groups.unpersist()
    mixed = [_mixed(txn) for txn in mixed_transactions(markers)]
    if mixed:
        counts[FindingKind.MIXED] = len(mixed)
    committed, aborted = _distinct_transactions(markers, scope)
    return AuditResult(
        partitions=partitions,
        transactions_committed=committed,
        transactions_aborted=aborted,
        finding_counts=dict(counts),
        findings=(*findings, *mixed[:evidence_max]),
        elapsed_s=time.monotonic() - began_s,
    )


async def _resolve(bootstrap_servers: str, topics: Sequence[str]) -> Scope:
    connector = KafkaConnector(KafkaConfig(bootstrap_servers=bootstrap_servers))
    admin: LogAdmin = connector.admin()
    try:
        return await resolve_scope(admin, topics)
    finally:
        await admin.close()


def _partition_audits(groups: DataFrame, scope: Scope) -> tuple[PartitionAudit, ...]:
    sums = [F.sum(name).alias(name) for name in ("rows", "digest_high", "digest_low")]
    found: dict[TopicPartition, dict[str, Row]] = {read.data: {} for read in scope.data}
    for row in groups.groupBy("topic", "partition", VISIBILITY).agg(*sums).collect():
        found[TopicPartition(row["topic"], row["partition"])][row[VISIBILITY]] = row
    return tuple(_partition_audit(read, found[read.data]) for read in scope.data)


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


def _distinct_transactions(markers: Sequence[Marker], scope: Scope) -> tuple[int, int]:
    current = [marker for marker in markers if of_current_topic(marker, scope)]
    committed = {marker.txn for marker in current if marker.committed}
    aborted = {marker.txn for marker in current if not marker.committed}
    return len(committed), len(aborted)
