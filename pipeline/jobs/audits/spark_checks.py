"""Runs the checks that need Spark, over one scan that Spark keeps for all of them.

*Source*: docs/protocols C6, D, F.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.spark.read_committed import Decisions, classify, with_txn
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.core.native.offset_ledger import OffsetLedger, Window
from stilltide.pipeline.core.topic_choice import fits
from stilltide.pipeline.drivers.native.evidence import NativeEvidence
from stilltide.pipeline.jobs.audits.carried import NOTHING, Carried, CarriedCount, crossing
from stilltide.pipeline.jobs.audits.checks.coordinated import Judgement, coordinated_checks, judge
from stilltide.pipeline.jobs.audits.checks.equivalence import Comparison, check_equivalence
from stilltide.pipeline.jobs.audits.checks.gaps import check_gaps
from stilltide.pipeline.jobs.audits.checks.leaks import Audited, check_leaks
from stilltide.pipeline.jobs.audits.checks.scans import (
    bucket_sums,
    by_bucket,
    by_transaction,
    committed_groups,
)
from stilltide.pipeline.jobs.audits.checks.windows import coordinated_windows, group_bits
from stilltide.pipeline.jobs.audits.pages.charts import ROWS_MAX
from stilltide.pipeline.jobs.audits.plan import AuditPlan, AuditProgress
from stilltide.pipeline.jobs.audits.report import Check, CheckResult
from stilltide.pipeline.jobs.audits.scope import Scope
from stilltide.pipeline.jobs.audits.undecided import FirstUndecided, first_undecided
from stilltide.pipeline.jobs.native_committed import native_committed
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.schemas.values import OffsetRange, TopicPartition


class SparkFound(NamedTuple):
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
    ) -> SparkFound:
        """Runs the checks; blocks.

        Args:
            native: aborted ranges, for `Check.EQUIVALENCE`; None leaves out the check.
            ledgers: counts of all partitions, for `Check.GAPS`; None leaves out the check.
        """
        plan, evidence, compacted = self._plan, self._scope.evidence, self._scope.compacted
        decisions = decisions_of(self._spark, evidence)
        with ExitStack() as held:
            self._progress.step("reading what Kafka shows")
            shown = read_ranges(self._spark, self._config, evidence.data)
            bits = group_bits(evidence.data)
            groups = _held(
                held,
                committed_groups(shown, decisions, digest=plan.digest, window_bits=bits),
            )
            groups.count()
            self._progress.step("judging coordinated transactions")
            transactions = _held(held, by_transaction(groups))
            carried = self._carried
            found = judge(
                transactions, decisions, evidence, plan.evidence_max, compacted, carried=carried
            )
            later = ()
            if carried.goes_on:
                later = crossing(carried.with_counts(transactions), decisions)
            first = first_undecided(transactions)
            windows = coordinated_windows(groups, evidence.data, ROWS_MAX)
            checks = coordinated_checks(
                found,
                plan.evidence_max,
                accept_unchecked=plan.accept_unchecked,
                compacted=[it for it in compacted if not fits(it, plan.allow_compacted)],
            )
            if ledgers is not None:
                places = (TopicPartition(it.topic, it.partition) for it in found.partitions)
                rows = dict(zip(places, (it.written for it in found.partitions), strict=True))
                checks.append(check_gaps(ledgers, rows, compacted, plan.evidence_max))
            if native is not None:
                self._progress.step("filtering by aborted-index")
                checks.append(self._equivalence(native, by_bucket(groups, bits)))
            leaks = plan.tables and Check.LEAKS in plan.checks
            self._progress.step("looking for leaks" if leaks else "finishing")
            if leaks:
                checks.append(self._leaks(decisions))
        return SparkFound(found, first, windows, later, checks)

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

    def _leaks(self, decisions: Decisions) -> CheckResult:
        data = self._scope.evidence.data
        records = with_txn(read_ranges(self._spark, self._config, data))
        audited = Audited(classify(records, decisions), data, self._scope.compacted)
        return check_leaks(self._spark, self._plan.tables, audited, self._plan.evidence_max)


def _held(stack: ExitStack, frame: DataFrame) -> DataFrame:
    """The frame, persisted by Spark until the stack unwinds."""
    kept = frame.persist()
    stack.callback(kept.unpersist)
    return kept
