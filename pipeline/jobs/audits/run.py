"""Runs an audit of topics with coordinated and native transactions.

*Source*: docs/protocols C6, D, F. `run_audit` blocks: call it from a thread in asyncio code.

*Invariants*: every bound is an offset that was resolved before the first record is read; after the
last record is read, the logs must still hold everything that was read. A check that could not run
is unknown.

A run of all checks reads the data by Spark twice, with read_committed and with read_uncommitted,
and reads the batch headers in addition.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import Cluster, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.native.offset_ledger import OffsetLedger
from stilltide.pipeline.drivers.native.batch_walk import walk
from stilltide.pipeline.drivers.native.evidence import NativeEvidence, gather_native
from stilltide.pipeline.drivers.native.indexing import AbortedIndexing
from stilltide.pipeline.jobs.audits.carried import NOTHING, Carried
from stilltide.pipeline.jobs.audits.checks.hanging import ask_open, check_hanging
from stilltide.pipeline.jobs.audits.plan import AuditPlan, AuditProgress, Silent
from stilltide.pipeline.jobs.audits.report import (
    AuditReport,
    BatchFigures,
    Check,
    CheckResult,
    OpenNative,
    PartitionFigures,
    UndecidedRecord,
)
from stilltide.pipeline.jobs.audits.scope import Scope, check_unmoved, resolve
from stilltide.pipeline.jobs.audits.spark_checks import SparkChecks, SparkFound
from stilltide.pipeline.jobs.audits.undecided import aged
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.schemas.values import OffsetRange, TopicPartition


class Known(NamedTuple):
    """What is known before data is read; a field is None if no check needs it."""

    scope: Scope
    native: NativeEvidence | None
    open: Sequence[OpenNativeTransaction] | FatalError | None
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
        bootstrap_servers: addresses of brokers, or a `KafkaConfig` for a cluster with TLS or SASL.
        plan: topics, checks and bounds.
        spark_options: options of the Spark session; by default all cores and the cached jars.
            Ignored when the process has an active session.
        progress: receives each step of the run.

    Raises:
        ConfigError: a bound names a partition that is not audited, or a range ends before it
            begins.
        OffsetOutOfRangeError: a bound is outside the log.
        FatalError: a topic does not exist, records were deleted during the read, Spark fails.
        RetriableError: the broker is away.
        SnapshotError: outcomes have a gap; see `gather_evidence`.
        DecodeError: a record of a system topic cannot be decoded.
        JavaMissingError, JarsError: Spark cannot be started.
    """
    assert plan.topics, "nothing to audit"
    return AuditRun(bootstrap_servers, plan, progress or Silent()).run(spark_options)


class AuditFound(NamedTuple):
    """The results of an audit of ranges, without hanging transactions."""

    spark: SparkFound
    checks: tuple[CheckResult, ...]
    partitions: tuple[PartitionFigures, ...]


class AuditRun:
    """The parts of a run.

    Args:
        cluster: the cluster.
        plan: topics, checks and bounds.
        progress: receives each step.
    """

    def __init__(self, cluster: Cluster, plan: AuditPlan, progress: AuditProgress) -> None:
        self.config = config_of(cluster)
        self._plan = plan
        self._progress = progress
        self.connector = KafkaConnector(self.config)

    def run(self, options: SparkOptions | None) -> AuditReport:
        """Runs the whole plan; blocks."""
        began_s, began_ms = time.monotonic(), SystemClock().now_ms()
        known = self.gather()
        found = self.audit(known, options)
        undecided = self.undecided(known, found)
        hanging, open_transactions = self.hanging(known)
        wanted = [*found.checks, *hanging]
        return AuditReport(
            topics=tuple(sorted(set(self._plan.topics))),
            began_ms=began_ms,
            elapsed_s=time.monotonic() - began_s,
            checks=tuple(sorted(wanted, key=lambda one: list(Check).index(one.check))),
            partitions=found.partitions,
            open_transactions=open_transactions,
            undecided=undecided,
        )

    def gather(self) -> Known:
        """What is known before data is read; resolves all bounds."""
        self._progress.step(f"resolving offsets on {self.config.bootstrap_servers}")
        return run_blocking(self._gather())

    def audit(
        self, known: Known, options: SparkOptions | None, carried: Carried = NOTHING
    ) -> AuditFound:
        """The checks of `known.scope.evidence.data`, except for hanging transactions."""
        ledgers = self._ledgers(known.scope.evidence.data)
        found = self._spark_found(known, ledgers, options, carried)
        run_blocking(self._check_unmoved(known.scope))
        return AuditFound(
            found,
            tuple(one for one in found.checks if one.check in self._plan.checks),
            _partitions(known.scope, found, ledgers),
        )

    def undecided(self, known: Known, found: AuditFound) -> tuple[UndecidedRecord, ...]:
        """The records at which readers wait, oldest first."""
        return run_blocking(aged(self.connector, found.spark.first_undecided, known.asked_ms))

    async def _gather(self) -> Known:
        plan, connector = self._plan, self.connector
        scope = await resolve(connector, plan.topics, plan.first, plan.until)
        data = scope.evidence.data
        native = found = None
        if plan.index_partitions is not None:
            await self._update_index(plan.index_partitions)
        if Check.EQUIVALENCE in plan.checks:
            native = await gather_native(connector, plan.topics, data)
        if Check.HANGING in plan.checks:
            found = await self._ask_open([read.data for read in data])
        return Known(scope, native, found, SystemClock().now_ms())

    async def _ask_open(
        self, data: Sequence[TopicPartition]
    ) -> list[OpenNativeTransaction] | FatalError:
        brokers = self.connector.native_transactions("audit")
        try:
            return await ask_open(brokers, data)
        finally:
            await brokers.close()

    async def _update_index(self, partitions: int) -> None:
        indexing = AbortedIndexing(
            self.connector,
            self.connector.batch_reader("audit"),
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

    def _ledgers(self, data: Sequence[OffsetRange]) -> list[OffsetLedger] | None:
        if Check.GAPS not in self._plan.checks:
            return None
        self._progress.step(f"walking the batches of {len(data)} partitions")
        return run_blocking(self._walk(data))

    async def _walk(self, data: Sequence[OffsetRange]) -> list[OffsetLedger]:
        total, done = max(1, sum(read.end - read.start for read in data)), 0

        def advanced(offsets: int) -> None:
            nonlocal done
            done += offsets
            self._progress.share(done / total)

        batches = self.connector.batch_reader("audit")
        try:
            return await walk(batches, data, advanced)
        finally:
            await batches.close()

    def _spark_found(
        self,
        known: Known,
        ledgers: Sequence[OffsetLedger] | None,
        options: SparkOptions | None,
        carried: Carried,
    ) -> SparkFound:
        self._progress.step("starting Spark")
        with (
            spark_session(options or SparkOptions(jars=spark_jars())) as spark,
            spark_errors(self.config),
        ):
            checks = SparkChecks(
                spark, self.config, self._plan, self._progress, known.scope, carried=carried
            )
            return checks.run(known.native, ledgers)

    def hanging(self, known: Known) -> tuple[list[CheckResult], tuple[OpenNative, ...]]:
        """The check of hanging transactions, if it is wanted, and all open transactions."""
        if known.open is None:
            return [], ()
        marks = known.scope.high_watermarks
        held = sum(marks.get(log.data, log.end) > log.start for log in known.scope.logs)
        check, shown = check_hanging(known.open, held, known.asked_ms, self._plan.evidence_max)
        return [check], shown

    async def _check_unmoved(self, scope: Scope) -> None:
        admin = self.connector.admin()
        try:
            await check_unmoved(admin, scope)
        finally:
            await admin.close()


def _partitions(
    scope: Scope, found: SparkFound, ledgers: Sequence[OffsetLedger] | None
) -> tuple[PartitionFigures, ...]:
    batches = [None] * len(scope.logs) if ledgers is None else [_batches(one) for one in ledgers]
    return tuple(
        PartitionFigures(
            records=each,
            last_stable_offset=log.end,
            high_watermark=max(log.end, scope.high_watermarks.get(log.data, log.end)),
            batches=of_batches,
            windows=found.windows.get(log.data, ()),
        )
        for log, each, of_batches in zip(
            scope.logs, found.coordinated.partitions, batches, strict=True
        )
    )


def _batches(ledger: OffsetLedger) -> BatchFigures:
    return BatchFigures(
        aborted=ledger.aborted,
        markers=ledger.markers,
        commits=ledger.commits,
        aborts=ledger.aborts,
        unexplained=ledger.unexplained,
        windows=ledger.windows(),
    )
