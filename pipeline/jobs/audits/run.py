"""Runs an audit of topics with coordinated and native transactions.

*Source*: docs/protocols C6, D, F. `run_audit` blocks: call it from a thread in asyncio code.

*Invariants*: every bound is an offset that was resolved before the first record is read; after the
last record is read, the logs must still hold everything that was read. A check that could not run
is unknown.

A run of all checks reads the data by Spark twice, with read_committed and with read_uncommitted,
and reads the batch headers in addition.

Runs the checks that need Spark, over one scan that Spark keeps for all of them.

*Source*: docs/protocols C6, D, F.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import Cluster, KafkaConfig, config_of
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.ports.connector import closing
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.read_committed import DecidingFrames, classify, with_txn
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.core.group_choice import fits
from stilltide.pipeline.core.native.hanging import OpenNativeTransaction
from stilltide.pipeline.core.native.offset_ledger import OffsetLedger, Window
from stilltide.pipeline.drivers.native.evidence import NativeEvidence, gather_native, walk
from stilltide.pipeline.drivers.native.owner import AbortedIndexing
from stilltide.pipeline.jobs.audits.carried import NOTHING, Carried, CarriedCount, crossing
from stilltide.pipeline.jobs.audits.checks.coordinated import Judgement, coordinated_checks, judge
from stilltide.pipeline.jobs.audits.checks.equivalence import (
    Comparison,
    check_equivalence,
    check_gaps,
)
from stilltide.pipeline.jobs.audits.checks.findings import (
    bucket_sums,
    by_bucket,
    by_transaction,
    committed_groups,
)
from stilltide.pipeline.jobs.audits.checks.hanging import ask_open, check_hanging
from stilltide.pipeline.jobs.audits.checks.leaks import Audited, check_leaks
from stilltide.pipeline.jobs.audits.checks.windows import coordinated_windows, group_bits
from stilltide.pipeline.jobs.audits.pages.charts import ROWS_MAX
from stilltide.pipeline.jobs.audits.plan import (
    AuditPlan,
    AuditProgress,
    Scope,
    Silent,
    check_unmoved,
    resolve,
)
from stilltide.pipeline.jobs.audits.report import (
    AuditReport,
    BatchFigures,
    Check,
    CheckResult,
    OpenNative,
    PartitionFigures,
    UndecidedRecord,
)
from stilltide.pipeline.jobs.audits.undecided import FirstUndecided, aged, first_undecided
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.pipeline.jobs.bounds import extent
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.topics import ABORTED_INDEX
from stilltide.schemas.values import OffsetRange, TopicPartition


class SparkResults(NamedTuple):
    """The results of the checks that need Spark.

    Attributes:
        coordinated: the judgement of coordinated transactions.
        first_undecided: the record at which readers of each partition wait.
        windows: visible and hidden records along the offsets of the partitions that are plotted.
        crossing: the counts of transactions that end past the window; empty if nothing goes on.
        checks: the results of all checks that ran, in any order.
    """

    coordinated: Judgement
    first_undecided: FirstUndecided
    windows: Mapping[TopicPartition, Sequence[Window]]
    crossing: tuple[CarriedCount, ...]
    checks: list[CheckResult]


class SparkChecks:
    """Runs the checks of a plan that need Spark.

    Args:
        spark: the session.
        config: the cluster.
        plan: the checks to run.
        progress: receives each step of the run.
        scope: the ranges to read, and the evidence.
        carried: what is known of earlier windows.
    """

    def __init__(
        self,
        spark: SparkSession,
        config: KafkaConfig,
        plan: AuditPlan,
        progress: AuditProgress,
        scope: Scope,
        *,
        carried: Carried = NOTHING,
    ) -> None:
        self._carried = carried
        self._spark = spark
        self._config = config
        self._plan = plan
        self._progress = progress
        self._scope = scope

    def run(
        self, native: NativeEvidence | None, ledgers: Sequence[OffsetLedger] | None
    ) -> SparkResults:
        """Runs the checks; blocks.

        Args:
            native: aborted ranges, for `Check.EQUIVALENCE`; None leaves out the check.
            ledgers: counts of all partitions, for `Check.GAPS`; None leaves out the check.
        """
        plan, evidence, compacted = self._plan, self._scope.evidence, self._scope.compacted
        decisions = decisions_of(self._spark, evidence)
        with ExitStack() as persisted:
            self._progress.step(f"reading what Kafka shows: {extent(evidence.data)}")
            shown = read_ranges(self._spark, self._config, evidence.data)
            bits = group_bits(evidence.data)
            groups = _held(
                persisted,
                committed_groups(shown, decisions, digest=plan.digest, window_bits=bits),
            )
            groups.count()
            self._progress.step("judging coordinated transactions")
            transactions = _held(persisted, by_transaction(groups))
            carried = self._carried
            judgement = judge(
                transactions, decisions, evidence, plan.evidence_max, compacted, carried=carried
            )
            later = ()
            if carried.goes_on:
                later = crossing(carried.with_counts(transactions), decisions)
            first = first_undecided(transactions)
            windows = coordinated_windows(groups, evidence.data, ROWS_MAX)
            checks = coordinated_checks(
                judgement,
                plan.evidence_max,
                accept_unchecked=plan.accept_unchecked,
                compacted=[it for it in compacted if not fits(it, plan.allow_compacted)],
            )
            if ledgers is not None:
                places = (TopicPartition(it.topic, it.partition) for it in judgement.partitions)
                rows = dict(zip(places, (it.written for it in judgement.partitions), strict=True))
                checks.append(check_gaps(ledgers, rows, compacted, plan.evidence_max))
            if native is not None:
                self._progress.step("filtering by aborted-index")
                checks.append(self._equivalence(native, by_bucket(groups, bits)))
            self._progress.step("looking for leaks" if plan.tables else "finishing")
            if Check.LEAKS in plan.checks:
                checks.append(self._leaks(decisions))
        return SparkResults(judgement, first, windows, later, checks)

    def _equivalence(self, native: NativeEvidence, theirs: DataFrame) -> CheckResult:
        data = self._scope.evidence.data
        why = {data: str(problem) for data, problem in native.problems.items()}

        def kept(reads: Sequence[OffsetRange]) -> DataFrame:
            return native_committed(self._spark, self._config, native, reads, headers=False)

        def both(read: OffsetRange) -> tuple[DataFrame, DataFrame]:
            return kept([read]), read_ranges(self._spark, self._config, [read], headers=False)

        covered = [read for read in data if read.data not in native.problems]
        ours = bucket_sums(kept(covered)) if covered else None
        comparison = Comparison(data, why, self._scope.compacted, both)
        return check_equivalence(ours, theirs, comparison, self._plan.evidence_max)

    def _leaks(self, decisions: DecidingFrames) -> CheckResult:
        data = self._scope.evidence.data
        records = with_txn(read_ranges(self._spark, self._config, data))
        audited = Audited(classify(records, decisions), data, self._scope.compacted)
        return check_leaks(self._spark, self._plan.tables, audited, self._plan.evidence_max)


def _held(stack: ExitStack, frame: DataFrame) -> DataFrame:
    """The frame, persisted by Spark until the stack unwinds."""
    kept = frame.persist()
    stack.callback(kept.unpersist)
    return kept


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


class AuditResults(NamedTuple):
    """The results of an audit of ranges, without hanging transactions."""

    spark: SparkResults
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
        results = self.audit(known, options)
        undecided = self.undecided(known, results)
        hanging, open_transactions = self.hanging(known)
        wanted = [*results.checks, *hanging]
        return AuditReport(
            topics=tuple(sorted(set(self._plan.topics))),
            began_ms=began_ms,
            elapsed_s=time.monotonic() - began_s,
            checks=tuple(sorted(wanted, key=lambda one: list(Check).index(one.check))),
            partitions=results.partitions,
            open_transactions=open_transactions,
            undecided=undecided,
        )

    def gather(self) -> Known:
        """What is known before data is read; resolves all bounds."""
        self._progress.step(f"resolving offsets on {self.config.bootstrap_servers}")
        return run_blocking(self._gather())

    def audit(
        self, known: Known, options: SparkOptions | None, carried: Carried = NOTHING
    ) -> AuditResults:
        """The checks of `known.scope.evidence.data`, except for hanging transactions."""
        ledgers = self._ledgers(known.scope.evidence.data)
        judged = self._spark_results(known, ledgers, options, carried)
        run_blocking(self._check_unmoved(known.scope))
        return AuditResults(
            judged,
            tuple(check for check in judged.checks if check.check in self._plan.checks),
            _partitions(known.scope, judged, ledgers),
        )

    def undecided(self, known: Known, results: AuditResults) -> tuple[UndecidedRecord, ...]:
        """The records at which readers wait, oldest first."""
        return run_blocking(aged(self.connector, results.spark.first_undecided, known.asked_ms))

    async def _gather(self) -> Known:
        plan, connector, note = self._plan, self.connector, self._progress.note
        scope = await resolve(connector, plan.topics, plan.first, plan.until, note)
        data = scope.evidence.data
        native = opened = None
        if plan.index_partitions is not None:
            note(f"bringing {ABORTED_INDEX} up to date")
            await self._update_index(plan.index_partitions)
        if Check.EQUIVALENCE in plan.checks:
            note(f"reading {ABORTED_INDEX}")
            native = await gather_native(connector, plan.topics, data)
        if Check.HANGING in plan.checks:
            note("asking brokers for open native transactions")
            opened = await self._ask_open([read.data for read in data])
        return Known(scope, native, opened, SystemClock().now_ms())

    async def _ask_open(
        self, data: Sequence[TopicPartition]
    ) -> list[OpenNativeTransaction] | FatalError:
        async with closing(self.connector.native_transactions("audit")) as brokers:
            return await ask_open(brokers, data)

    async def _update_index(self, partitions: int) -> None:
        async with closing(
            AbortedIndexing(
                self.connector,
                self.connector.batch_reader("audit"),
                sorted(set(self._plan.topics)),
                partition_count=partitions,
                patience_s=0,
                replicas=self._plan.index_replicas,
            )
        ) as indexing:
            await indexing.once()

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

        async with closing(self.connector.batch_reader("audit")) as batches:
            return await walk(batches, data, advanced)

    def _spark_results(
        self,
        known: Known,
        ledgers: Sequence[OffsetLedger] | None,
        options: SparkOptions | None,
        carried: Carried,
    ) -> SparkResults:
        self._progress.step("starting Spark")
        with (
            spark_session(options or SparkOptions(jars=spark_jars())) as spark,
            spark_errors(self.config, self._plan.topics),
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
        filled = sum(marks.get(log.data, log.end) > log.start for log in known.scope.logs)
        check, shown = check_hanging(known.open, filled, known.asked_ms, self._plan.evidence_max)
        return [check], shown

    async def _check_unmoved(self, scope: Scope) -> None:
        async with closing(self.connector.admin()) as admin:
            await check_unmoved(admin, scope)


def _partitions(
    scope: Scope, judged: SparkResults, ledgers: Sequence[OffsetLedger] | None
) -> tuple[PartitionFigures, ...]:
    batches = [None] * len(scope.logs) if ledgers is None else [_batches(one) for one in ledgers]
    return tuple(
        PartitionFigures(
            records=each,
            last_stable_offset=log.end,
            high_watermark=max(log.end, scope.high_watermarks.get(log.data, log.end)),
            batches=of_batches,
            windows=judged.windows.get(log.data, ()),
        )
        for log, each, of_batches in zip(
            scope.logs, judged.coordinated.partitions, batches, strict=True
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
