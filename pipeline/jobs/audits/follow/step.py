"""One run of audits that go on: a window is checked and stored, and what follows it looked at.

*Source*: docs/protocols C6, D2. Blocks.

*Invariants*: the report of a run is what one audit from the first window's begin to the end of what
this run has read would find. Only what can no longer change is stored.

Refuses: what `load_state`, `check_belongs`, `check_unchanged` and `run_audit` refuse.

The bounds of the next window, and of what follows it; pure.

*Invariants*: a window ends at or below the first undecided record, so that no record of a window
can change its class later. The records behind it are looked at again in each run.

Runs audits that go on in a report's directory: state, report and history belong together.

*Invariants*: the state is stored last, by one rename: a crash before that repeats the run, with the
same number and so the same row of the history. A run that raises an error changes no file.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.read_committed import VISIBILITY, Visibility, classify, with_txn
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.core.tables.increments import bounded_shares
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.audits.carried import Carried, CarriedCount
from stilltide.pipeline.jobs.audits.files import write_report
from stilltide.pipeline.jobs.audits.follow.history import row_of, write_history
from stilltide.pipeline.jobs.audits.follow.state import (
    Figures,
    State,
    check_belongs,
    check_unchanged,
    load_state,
    store_state,
)
from stilltide.pipeline.jobs.audits.follow.totals import (
    KEPT_MAX,
    PASSING,
    CheckTotal,
    add_results,
    results_of,
)
from stilltide.pipeline.jobs.audits.plan import AuditPlan, AuditProgress
from stilltide.pipeline.jobs.audits.report import (
    AuditReport,
    BatchFigures,
    Check,
    CheckResult,
    FindingKind,
    PartitionAudit,
    PartitionFigures,
)
from stilltide.pipeline.jobs.audits.run import AuditResults, AuditRun, Known
from stilltide.pipeline.jobs.outcomes import decisions_of, of_current_topic
from stilltide.pipeline.jobs.read_committed import decided_ranges
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId


class Bounds(NamedTuple):
    """The ranges that one run may read.

    Attributes:
        data: ranges from the stored positions, together of `records_max` offsets at most.
        is_all: whether they reach the last stable offset of every partition.
    """

    data: tuple[OffsetRange, ...]
    is_all: bool


def bounded(left: Sequence[OffsetRange], records_max: int) -> Bounds:
    """The part of `left` to read in one run: shares of the partitions that have offsets left."""
    data = bounded_shares(left, records_max)
    return Bounds(data, all(one.end == of.end for one, of in zip(data, left, strict=True)))


def behind(data: Sequence[OffsetRange], window: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """What `data` holds past the windows."""
    ends: Mapping[TopicPartition, EndOffset] = {one.data: one.end for one in window}
    return tuple(one._replace(start=Offset(ends[one.data])) for one in data)


RECORDS_MAX = 1_000_000
"""Offsets that a run reads by default: some seconds of Spark's work."""

_RECORDS = ("written", "visible", "hidden", "undecided", "malformed", "late", "plain")
_BATCHES = ("aborted", "markers", "commits", "aborts", "unexplained")


class Stepped(NamedTuple):
    """The result of a run.

    Attributes:
        state: to be stored.
        report: of everything so far.
        is_all: whether the run has read up to the last stable offsets.
    """

    state: State
    report: AuditReport
    is_all: bool


class Follower:
    """Runs audits that go on.

    Args:
        config: the cluster.
        plan: topics and checks; without bounds, tables and digest.
        records_max: number of offsets that a run reads at most, >= number of partitions.
        options: of the Spark session, if there is none yet.
        progress: receives each step of a run.
    """

    def __init__(
        self,
        config: KafkaConfig,
        plan: AuditPlan,
        records_max: int,
        options: SparkOptions,
        progress: AuditProgress,
    ) -> None:
        self._config = config
        self._plan = plan
        self._records_max = records_max
        self._options = options
        self._progress = progress

    def step(self, state: State) -> Stepped:
        """Runs once, from the stored state."""
        began_s, began_ms = time.monotonic(), SystemClock().now_ms()
        check_belongs(state, self._plan.topics, _names(self._plan))
        plan = replace(
            self._plan, first=dict(state.positions), evidence_max=KEPT_MAX, accept_unchecked=False
        )
        run = AuditRun(self._config, plan, self._progress)
        known = run.gather()
        evidence = known.scope.evidence
        check_unchanged(state, evidence.topic_ids)
        bounds = bounded(evidence.data, self._records_max)
        looker = _Looker(run, known, self._options, self._config)
        window = looker.decided(bounds.data)
        new = looker.window(state, window)
        shown, results = looker.behind(new, behind(bounds.data, window), goes_on=not bounds.is_all)
        if _is_uncovered(new):
            new = state  # the index is behind: the window is checked again
        hanging, open_transactions = run.hanging(known)
        report = AuditReport(
            topics=tuple(sorted(evidence.topic_ids)),
            began_ms=began_ms,
            elapsed_s=time.monotonic() - began_s,
            checks=tuple(_checks(shown, hanging, self._plan)),
            partitions=_partitions(shown, known),
            open_transactions=open_transactions,
            undecided=() if results is None else run.undecided(known, results),
        )
        ids = dict(evidence.topic_ids)
        new = replace(new, run=state.run + 1, topic_ids=ids, checks=_names(plan))
        return Stepped(new, report, bounds.is_all)


class _Looker:
    """Checks windows, with what earlier windows left.

    Args:
        run: the parts of an audit.
        known: what is known as of now.
        options: of Spark.
        config: the cluster.
    """

    def __init__(
        self, run: AuditRun, known: Known, options: SparkOptions, config: KafkaConfig
    ) -> None:
        self._run = run
        self._known = known
        self._options = options
        self._config = config
        self._topics = sorted(known.scope.evidence.topic_ids)

    def narrowed(self, data: Sequence[OffsetRange]) -> Known:
        """What is known, with other ranges to audit."""
        scope = self._known.scope
        evidence = replace(scope.evidence, data=tuple(data))
        return self._known._replace(scope=replace(scope, evidence=evidence))

    def decided(self, data: Sequence[OffsetRange]) -> list[OffsetRange]:
        """The ranges, each up to its first undecided record."""
        evidence = self.narrowed(data).scope.evidence
        with spark_session(self._options) as spark, spark_errors(self._config, self._topics):
            return decided_ranges(
                lambda reads: read_ranges(spark, self._config, reads),
                evidence,
                decisions_of(spark, evidence),
            )

    def behind(
        self, state: State, tail: Sequence[OffsetRange], *, goes_on: bool
    ) -> tuple[State, AuditResults | None]:
        """The state with what follows the window, to be shown only; and what was found there."""
        if not any(one.end > one.start for one in tail) and (goes_on or not state.crossing):
            return state, None
        carried = Carried(state.origins, state.crossing, goes_on=goes_on)
        results = self._run.audit(self.narrowed(tail), self._options, carried)
        return _added(state, results, tail), results

    def window(self, state: State, data: Sequence[OffsetRange]) -> State:
        """The state after the window: everything in it is decided."""
        evidence = self._known.scope.evidence
        again = _again(evidence, state)
        origins = {one.data: one.start for one in data} | dict(state.origins)
        if not again and not any(one.end > one.start for one in data):
            return replace(state, origins=origins, positions=_ends(data))
        counts = (*state.crossing, *self._counted_again(again, origins))
        carried = Carried(state.origins, counts, frozenset(again), goes_on=True)
        results = self._run.audit(self.narrowed(data), self._options, carried)
        return replace(
            _added(state, results, data),
            origins=origins,
            positions=_ends(data),
            markers_until=_markers_until(evidence, state),
            crossing=results.spark.crossing,
        )

    def _counted_again(
        self,
        again: Mapping[tuple[TopicPartition, TxnId], tuple[int, int]],
        origins: Mapping[TopicPartition, Offset],
    ) -> list[CarriedCount]:
        """Counts the records of transactions that ended before the window, by reading them."""
        spans: dict[TopicPartition, OffsetRange] = {}
        starts = {log.data: log.start for log in self._known.scope.logs}
        for (data, _), (start, end) in again.items():
            first = max(start, starts[data], origins[data])
            span = spans.get(data, OffsetRange(data, Offset(first), EndOffset(end)))
            spans[data] = OffsetRange(
                data, Offset(min(span.start, first)), EndOffset(max(span.end, end))
            )
        reads = [span for span in spans.values() if span.start < span.end]
        if not reads:
            return []
        with spark_session(self._options) as spark, spark_errors(self._config, self._topics):
            decisions = decisions_of(spark, self.narrowed(reads).scope.evidence)
            rows = (
                classify(with_txn(read_ranges(spark, self._config, reads)), decisions)
                .filter(F.col(VISIBILITY) == Visibility.VISIBLE.value)
                .filter(F.col("txn").isin([txn.to_bytes() for _, txn in again]))
                .groupBy("topic", "partition", "txn")
                .agg(F.min("offset"), F.max("offset"), F.count("*"))
                .collect()
            )
        counted = [
            CarriedCount(TopicPartition(topic, number), TxnId.from_bytes(bytes(txn)), *counts)
            for topic, number, txn, *counts in rows
        ]
        return [one for one in counted if (one.data, one.txn) in again]


def _again(
    evidence: TopicOutcomes, state: State
) -> dict[tuple[TopicPartition, TxnId], tuple[int, int]]:
    """Committed transactions that ended before the window, and whose marker is new."""
    late: dict[tuple[TopicPartition, TxnId], tuple[int, int]] = {}
    for marker, offset in zip(evidence.markers, evidence.marker_offsets, strict=True):
        position, end = state.positions.get(marker.data), marker.end_offset
        if position is None or end is None or not marker.committed:
            continue
        is_new = offset >= state.markers_until.get(marker.data, 0)
        within = state.origins[marker.data] < end <= position
        if is_new and within and of_current_topic(marker, evidence):
            late[marker.data, marker.txn] = marker.start_offset, end
    return late


def _markers_until(evidence: TopicOutcomes, state: State) -> dict[TopicPartition, EndOffset]:
    until = defaultdict[TopicPartition, EndOffset](lambda: EndOffset(0), state.markers_until)
    for marker, offset in zip(evidence.markers, evidence.marker_offsets, strict=True):
        until[marker.data] = EndOffset(max(until[marker.data], offset + 1))
    return dict(until)


def _added(state: State, results: AuditResults, data: Sequence[OffsetRange]) -> State:
    figures = dict(state.figures)
    for audit, read in zip(results.partitions, data, strict=True):
        before = figures.get(read.data, {})
        figures[read.data] = {
            name: before.get(name, 0) + count for name, count in _counts(audit).items()
        }
    return replace(state, totals=add_results(state.totals, results.checks), figures=figures)


def _counts(figures: PartitionFigures) -> Figures:
    counts = {name: getattr(figures.records, name) for name in _RECORDS}
    if figures.batches is not None:
        counts |= {name: getattr(figures.batches, name) for name in _BATCHES}
    return counts


def _ends(data: Sequence[OffsetRange]) -> dict[TopicPartition, Offset]:
    return {one.data: Offset(one.end) for one in data}


def _names(plan: AuditPlan) -> list[str]:
    return sorted(check.value for check in plan.checks)


def _is_uncovered(state: State) -> bool:
    total = state.totals.get(Check.EQUIVALENCE)
    kinds = () if total is None else (finding.kind for finding in total.findings.values())
    return FindingKind.UNCOVERED in kinds


def _checks(shown: State, hanging: Sequence[CheckResult], asked: AuditPlan) -> list[CheckResult]:
    """The results in the order of `Check`; a check of which no window was read is empty."""
    totals = {check: CheckTotal() for check in set(asked.checks) - {*PASSING, Check.LEAKS}}
    results = results_of(
        totals | dict(shown.totals),
        asked.evidence_max,
        accept_unchecked=asked.accept_unchecked,
    )
    return sorted((*results, *hanging), key=lambda one: list(Check).index(one.check))


def _partitions(shown: State, known: Known) -> tuple[PartitionFigures, ...]:
    figures: list[PartitionFigures] = []
    for log in known.scope.logs:
        counts = shown.figures.get(log.data, {})
        records = {name: counts.get(name, 0) for name in _RECORDS}
        batches = {name: counts.get(name, 0) for name in _BATCHES}
        start = shown.origins.get(log.data, log.start)
        end = EndOffset(shown.positions.get(log.data, start))
        marks = known.scope.high_watermarks
        figures.append(
            PartitionFigures(
                PartitionAudit(*log.data, start, end, **records, digest=None),
                log.end,
                max(log.end, marks.get(log.data, log.end)),
                BatchFigures(**batches, windows=()),
            )
        )
    return tuple(figures)


def run_once(follower: Follower, directory: Path) -> Stepped:
    """One run; the caller holds the directory's lock.

    Raises:
        OSError: the directory cannot be written to.
        FatalError: the directory holds audits of something else.
        Others: as `run_audit` raises.
    """
    stepped = follower.step(load_state(directory))
    history = write_history(directory, row_of(stepped.state.run, stepped.report))
    write_report(stepped.report, directory, history)
    store_state(directory, stepped.state)
    return stepped
