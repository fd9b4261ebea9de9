"""The audit: do topics hold exactly the records that transactions committed?

*Source*: protocols.md C6 (verifiable transactions), D1-D3, D6; facts: spark.md 3.1 and 6.

The data is read once, grouped to one row for each (partition, transaction, visibility); every
count, digest and finding comes from those groups. A blocking job: call it from a thread in asyncio
code.

*Invariants*: all bounds are resolved before the first read (`drivers.snapshots.outcomes`); a record
that cannot be judged makes the verdict unknown, never valid; a transaction whose count nothing
promises any more, because a snapshot has absorbed its marker, is counted as unchecked.

Refuses: topics that do not exist, and evidence with a gap. It cannot tell what
compaction of a user topic removed from what was lost: there, `missing` is expected.
"""

import time
from collections.abc import Sequence

from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.drivers.snapshots.outcomes import Progress, gather_evidence
from stilltide.pipeline.jobs.audit_result import AuditResult
from stilltide.pipeline.jobs.audits.coordinated import judge
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.pipeline.jobs.findings import group_records
from stilltide.pipeline.jobs.outcomes import decisions_of

EVIDENCE_MAX = 20
"""Findings of each kind that are listed unless told otherwise; all are counted."""


def audit(
    bootstrap_servers: Cluster,
    topics: Sequence[str],
    *,
    spark_options: SparkOptions | None = None,
    evidence_max: int = EVIDENCE_MAX,
    progress: Progress = lambda _: None,
) -> AuditResult:
    """Audits `topics` up to their last stable offsets as of the call; blocks.

    Args:
        bootstrap_servers: the cluster, with its config where it wants TLS or SASL.
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
    progress(f"resolving offsets on {config_of(bootstrap_servers).bootstrap_servers}")
    connector = KafkaConnector(config_of(bootstrap_servers))
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
            progress("checking that transactions are complete")
            found = judge(groups, decisions.outcomes, evidence, evidence_max)
        finally:
            groups.unpersist()
    return AuditResult(
        partitions=found.partitions,
        transactions_committed=found.committed,
        transactions_aborted=found.aborted,
        transactions_unchecked=found.unchecked,
        finding_counts=dict(found.finding_counts),
        findings=found.findings,
        elapsed_s=time.monotonic() - began_s,
    )
