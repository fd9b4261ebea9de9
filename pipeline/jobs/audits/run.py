"""A run of the audits: topics of both kinds of transaction, one answer with evidence.

*Source*: protocols.md C6, D, F; facts: spark.md 6. A blocking job: call it from a thread in asyncio
code.

*Invariants*: every bound is an offset that was resolved before the first record is read; after the
last one the logs must still hold what was read. A check that could not look is unknown.

The data is read twice by Spark, once as Kafka's read_committed shows it and once as it lies there,
and its batch headers once besides.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.read_committed import Decisions, classify, with_txn
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.native.offset_ledger import OffsetLedger
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.drivers.native.batch_walk import walk
from stilltide.pipeline.drivers.native.evidence import NativeEvidence, gather_native
from stilltide.pipeline.drivers.native.indexing import AbortedIndexing
from stilltide.pipeline.jobs.audit_result import Finding, FindingKind, PartitionAudit
from stilltide.pipeline.jobs.audits.coordinated import Judgement, judge
from stilltide.pipeline.jobs.audits.equivalence import Comparison, check_equivalence
from stilltide.pipeline.jobs.audits.gaps import check_gaps
from stilltide.pipeline.jobs.audits.hanging import ask_open, check_hanging
from stilltide.pipeline.jobs.audits.leaks import Audited, check_leaks
from stilltide.pipeline.jobs.audits.report import (
    AuditReport,
    Check,
    CheckResult,
    Findings,
    PartitionFigures,
)
from stilltide.pipeline.jobs.audits.scans import (
    bucket_sums,
    by_bucket,
    by_transaction,
    committed_groups,
)
from stilltide.pipeline.jobs.audits.scope import Bounds, Scope, check_unmoved, resolve
from stilltide.pipeline.jobs.audits.undecided import FirstUndecided, aged, first_undecided
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.values import OffsetRange, TopicPartition

EVIDENCE_MAX = 20
"""Findings of each kind that are listed unless told otherwise; all are counted."""


STEPS = 7
"""Calls of `AuditProgress.step` in a run."""


class AuditProgress(Protocol):
    """Told how far a run is."""

    def step(self, text: str) -> None:
        """The next of `STEPS` begins."""
        ...

    def share(self, done: float) -> None:
        """So much of the step is done, 0 to 1."""
        ...


class Silent:
    """An `AuditProgress` that nobody looks at."""

    def step(self, text: str) -> None:
        """Nothing."""

    def share(self, done: float) -> None:
        """Nothing."""


@dataclass(frozen=True)
class AuditPlan:
    """What to audit.

    Attributes:
        topics: at least one.
        first: offsets to begin at, instead of the log starts.
        until: offsets to end at, exclusive, instead of the last stable offsets.
        tables: paths of Parquet tables that were made of the topics.
        digest: whether to give each partition's content digest; it costs as much as a scan.
        index_partitions: bring aborted-index up to date first, and create it with so many
            partitions if it is missing; None: take it as it is.
        index_replicas: of aborted-index, when it is created.
        evidence_max: findings that are listed of each kind, >= 0; all are counted.
    """

    topics: Sequence[str]
    first: Bounds = field(default_factory=dict)
    until: Bounds = field(default_factory=dict)
    tables: Sequence[str] = ()
    digest: bool = False
    index_partitions: int | None = None
    index_replicas: WantedReplicas = AUTOMATIC
    evidence_max: int = EVIDENCE_MAX


class _Known(NamedTuple):
    """What is known before data is read."""

    scope: Scope
    native: NativeEvidence
    open: Sequence[OpenNativeTransaction] | FatalError
    asked_ms: int


def run_audit(
    bootstrap_servers: Cluster,
    plan: AuditPlan,
    *,
    spark_options: SparkOptions | None = None,
    progress: AuditProgress | None = None,
) -> AuditReport:
    """Audits topics as of the call; blocks.

    Args:
        bootstrap_servers: the cluster, with its config where it wants TLS or SASL.
        plan: what to audit.
        spark_options: how to run Spark; by default on all cores, with the cached jars. Ignored
            when the process has an active session.
        progress: told how far it is.

    Raises:
        ConfigError: bounds of what is not audited, or the wrong way round.
        OffsetOutOfRangeError: the log does not hold a bound.
        FatalError: a topic does not exist, records were deleted during the read, Spark fails.
        RetriableError: the broker is away.
        SnapshotError: outcomes have a gap; see `gather_evidence`.
        DecodeError: a record of a system topic is none of it.
        JavaMissingError, JarsError: Spark cannot be started.
    """
    assert plan.topics, "nothing to audit"
    return _Run(bootstrap_servers, plan, progress or Silent()).run(spark_options)


class _Run:
    def __init__(self, cluster: Cluster, plan: AuditPlan, progress: AuditProgress) -> None:
        self._config = config_of(cluster)
        self._plan = plan
        self._progress = progress
        self._connector = KafkaConnector(self._config)

    def run(self, options: SparkOptions | None) -> AuditReport:
        began_s, began_ms = time.monotonic(), SystemClock().now_ms()
        self._progress.step(f"resolving offsets on {self._config.bootstrap_servers}")
        known = run_blocking(self._gather())
        data = known.scope.evidence.data
        self._progress.step(f"walking the batches of {len(data)} partitions")
        ledgers = run_blocking(self._walk(data))
        self._progress.step("starting Spark")
        with (
            spark_session(options or SparkOptions(jars=spark_jars())) as spark,
            spark_errors(self._config),
        ):
            found, first, checks = self._spark_checks(spark, known, ledgers)
        run_blocking(self._check_unmoved(known.scope))
        undecided = run_blocking(aged(self._connector, first, known.asked_ms))
        hanging, shown = check_hanging(known.open, known.asked_ms, self._plan.evidence_max)
        checks.append(hanging)
        order = list(Check)
        return AuditReport(
            topics=tuple(sorted(set(self._plan.topics))),
            began_ms=began_ms,
            elapsed_s=time.monotonic() - began_s,
            checks=tuple(sorted(checks, key=lambda one: order.index(one.check))),
            partitions=tuple(
                _figures(known.scope, *each)
                for each in zip(known.scope.logs, found.partitions, ledgers, strict=True)
            ),
            open_transactions=shown,
            undecided=undecided,
        )

    async def _gather(self) -> _Known:
        plan, connector = self._plan, self._connector
        scope = await resolve(connector, plan.topics, plan.first, plan.until)
        data = scope.evidence.data
        if plan.index_partitions is not None:
            await self._update_index(plan.index_partitions)
        native = await gather_native(connector, plan.topics, data)
        brokers = connector.native_transactions("audit")
        try:
            found = await ask_open(brokers, [read.data for read in data])
        finally:
            await brokers.close()
        return _Known(scope, native, found, SystemClock().now_ms())

    async def _update_index(self, partitions: int) -> None:
        indexing = AbortedIndexing(
            self._connector,
            self._connector.batch_reader("audit"),
            SystemClock(),
            sorted(set(self._plan.topics)),
            partition_count=partitions,
            patience_s=0,
            replicas=self._plan.index_replicas,
        )
        try:
            await indexing.once()
        finally:
            await indexing.close()

    async def _walk(self, data: Sequence[OffsetRange]) -> list[OffsetLedger]:
        total, done = max(1, sum(read.end - read.start for read in data)), 0

        def advanced(offsets: int) -> None:
            nonlocal done
            done += offsets
            self._progress.share(done / total)

        batches = self._connector.batch_reader("audit")
        try:
            return await walk(batches, data, advanced)
        finally:
            await batches.close()

    async def _check_unmoved(self, scope: Scope) -> None:
        admin = self._connector.admin()
        try:
            await check_unmoved(admin, scope)
        finally:
            await admin.close()

    def _spark_checks(
        self, spark: SparkSession, known: _Known, ledgers: Sequence[OffsetLedger]
    ) -> tuple[Judgement, FirstUndecided, list[CheckResult]]:
        plan, scope = self._plan, known.scope
        evidence, compacted = scope.evidence, scope.compacted
        decisions = decisions_of(spark, evidence)
        with ExitStack() as held:
            self._progress.step("reading what Kafka shows")
            shown = read_ranges(spark, self._config, evidence.data)
            groups = _held(held, committed_groups(shown, decisions, digest=plan.digest))
            groups.count()
            self._progress.step("judging coordinated transactions")
            transactions = _held(held, by_transaction(groups))
            found = judge(transactions, decisions.outcomes, evidence, plan.evidence_max, compacted)
            first = first_undecided(transactions)
            checks = coordinated_checks(found, plan.evidence_max)
            rows = {TopicPartition(it.topic, it.partition): it.written for it in found.partitions}
            checks.append(check_gaps(ledgers, rows, compacted, plan.evidence_max))
            self._progress.step("filtering by aborted-index")
            checks.append(self._equivalence(spark, known, by_bucket(groups)))
            self._progress.step("looking for leaks" if plan.tables else "finishing")
            if plan.tables:
                checks.append(self._leaks(spark, scope, decisions))
        return found, first, checks

    def _equivalence(self, spark: SparkSession, known: _Known, theirs: DataFrame) -> CheckResult:
        native, scope = known.native, known.scope
        data = scope.evidence.data
        why = {data: str(problem) for data, problem in native.problems.items()}

        def kept(reads: Sequence[OffsetRange]) -> DataFrame:
            return native_committed(spark, self._config, native, reads, headers=False)

        def both(read: OffsetRange) -> tuple[DataFrame, DataFrame]:
            return kept([read]), read_ranges(spark, self._config, [read], headers=False)

        covered = [read for read in data if read.data not in native.problems]
        ours = bucket_sums(kept(covered)) if covered else None
        comparison = Comparison(data, why, scope.compacted, both)
        return check_equivalence(ours, theirs, comparison, self._plan.evidence_max)

    def _leaks(self, spark: SparkSession, scope: Scope, decisions: Decisions) -> CheckResult:
        data = scope.evidence.data
        classified = classify(with_txn(read_ranges(spark, self._config, data)), decisions)
        return check_leaks(
            spark,
            self._plan.tables,
            Audited(classified, data, scope.compacted),
            self._plan.evidence_max,
        )


def _held(stack: ExitStack, frame: DataFrame) -> DataFrame:
    """The frame, kept by Spark until the stack unwinds."""
    kept = frame.persist()
    stack.callback(kept.unpersist)
    return kept


def coordinated_checks(found: Judgement, evidence_max: int) -> list[CheckResult]:
    """The checks of coordinated transactions; an answer about no transaction is unknown (C6)."""
    findings = Findings(evidence_max)
    findings.add_all(found.finding_counts, found.findings)
    if found.none_checked:
        findings.add(_unpromised(found.unchecked))
    visible = sum(one.visible for one in found.partitions)
    figures = {
        Check.HEADERS: {"records": sum(one.written for one in found.partitions)},
        Check.ORPHANS: {"visible": visible, "hidden": sum(it.hidden for it in found.partitions)},
        Check.LATE: {"visible": visible},
        Check.COUNTS: {"committed": found.committed, "unchecked": found.unchecked},
        Check.ATOMICITY: {"committed": found.committed, "aborted": found.aborted},
    }
    return [CheckResult.of(check, findings, **each) for check, each in figures.items()]


def _unpromised(unchecked: int) -> Finding:
    """The counts of no transaction could be checked: that is not known to be right."""
    detail = (
        f"snapshots have absorbed the markers of all {unchecked} committed transactions in the"
        " range, and nothing else promises how many records they have"
    )
    return Finding(FindingKind.UNPROMISED, None, None, None, None, None, None, detail)


def _figures(
    scope: Scope, log: OffsetRange, records: PartitionAudit, ledger: OffsetLedger
) -> PartitionFigures:
    return PartitionFigures(
        records=records,
        aborted=ledger.aborted,
        markers=ledger.markers,
        commits=ledger.commits,
        aborts=ledger.aborts,
        unexplained=ledger.unexplained,
        last_stable_offset=log.end,
        high_watermark=max(log.end, scope.high_watermarks.get(log.data, log.end)),
        windows=ledger.windows(),
    )
