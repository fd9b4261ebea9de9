"""Judges coordinated transactions: makes figures and findings from grouped records.

*Source*: docs/protocols C6, D1-D4, D6, E8.

*Invariants*: a record that cannot be judged makes the verdict unknown, never valid. A transaction
whose marker a snapshot has absorbed has no known record count, and is counted as unchecked.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import VISIBILITY, Visibility, digest_of_sums
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.audits.checks.findings import Unmarked, collect_findings, find_unmarked
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Findings
from stilltide.pipeline.jobs.audits.verdicts import Finding, FindingKind, PartitionAudit
from stilltide.pipeline.jobs.outcomes import mixed_transactions, of_current_topic
from stilltide.schemas.values import OffsetRange, TopicPartition, TxnId


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of the coordinated transactions on some partitions.

    Attributes:
        partitions: counts of each partition, in the order of the evidence.
        committed: number of distinct transactions with a commit marker or a visible record.
        aborted: number of distinct transactions with an abort marker, or listed in a snapshot.
        unchecked: number of committed transactions whose marker, with its record count, is gone
            (C6).
        none_checked: whether the range has committed transactions, and all are unchecked.
        finding_counts: number of findings of each kind; kinds without findings are absent.
        findings: listed findings, a bounded number of each kind.
    """

    partitions: tuple[PartitionAudit, ...]
    committed: int
    aborted: int
    unchecked: int
    none_checked: bool
    finding_counts: Counter[FindingKind]
    findings: tuple[Finding, ...]


def judge(
    groups: DataFrame,
    outcomes: DataFrame,
    evidence: TopicOutcomes,
    evidence_max: int,
    compacted: Collection[str] = (),
) -> Judgement:
    """Judges the groups of `by_transaction`; runs several Spark jobs, so persist `groups` first.

    Args:
        groups: the frame of `by_transaction`, with or without digests.
        outcomes: the outcomes of the decisions that classified the records of `groups`.
        evidence: the evidence that the decisions were made from.
        evidence_max: number of findings of each kind to list.
        compacted: compacted topics, whose cleaner may have removed records.
    """
    counts, findings = collect_findings(groups, outcomes, evidence_max, compacted)
    unmarked = Unmarked(0, 0, 0, (), others=True)
    if evidence.snapshots:
        unmarked = find_unmarked(groups, outcomes, evidence_max)
    mixed = mixed_transactions(evidence)
    if mixed or unmarked.mixed_count:
        counts[FindingKind.MIXED] = len(mixed) + unmarked.mixed_count
    committed, aborted = _distinct_transactions(evidence)
    return Judgement(
        partitions=_partition_audits(groups, evidence),
        committed=committed + unmarked.uncounted,
        aborted=aborted,
        unchecked=unmarked.total,
        none_checked=bool(unmarked.total) and not unmarked.others,
        finding_counts=counts,
        findings=(*findings, *map(_mixed, [*mixed, *unmarked.mixed][:evidence_max])),
    )


def coordinated_checks(
    found: Judgement, evidence_max: int, *, promises_required: bool = True
) -> list[CheckResult]:
    """The checks of coordinated transactions.

    Args:
        found: the judgement.
        evidence_max: number of findings of each kind to list.
        promises_required: whether `Check.COUNTS` is unknown when the record count of no committed
            transaction could be checked (C6).
    """
    findings = Findings(evidence_max)
    findings.add_all(found.finding_counts, found.findings)
    if found.none_checked and promises_required:
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
    """The finding that the record count of no transaction could be checked."""
    detail = (
        f"snapshots have absorbed the markers of all {unchecked} committed transactions in the"
        " range, and nothing else promises how many records they have"
    )
    return Finding(FindingKind.UNPROMISED, None, None, None, None, None, None, detail)


def _partition_audits(groups: DataFrame, evidence: TopicOutcomes) -> tuple[PartitionAudit, ...]:
    names = [name for name in ("rows", "digest_high", "digest_low") if name in groups.columns]
    sums = [F.sum(name).alias(name) for name in names]
    found: dict[TopicPartition, dict[str, Row]] = {read.data: {} for read in evidence.data}
    for row in groups.groupBy("topic", "partition", VISIBILITY).agg(*sums).collect():
        found[TopicPartition(row["topic"], row["partition"])][row[VISIBILITY]] = row
    digests = len(names) > 1
    return tuple(_partition_audit(read, found[read.data], digests) for read in evidence.data)


def _partition_audit(read: OffsetRange, found: dict[str, Row], digests: bool) -> PartitionAudit:  # noqa: FBT001 - private, one caller
    rows = {kind: found[kind]["rows"] if kind in found else 0 for kind in Visibility}
    digest = None
    if digests:
        parts = (digest_of_sums(row["digest_high"], row["digest_low"]) for row in found.values())
        digest = sum(parts)
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
        digest=digest,
    )


def _mixed(txn: TxnId) -> Finding:
    return Finding(FindingKind.MIXED, None, None, None, txn, None, None)


def _distinct_transactions(evidence: TopicOutcomes) -> tuple[int, int]:
    """Numbers of transactions with a commit marker, and with an abort in a marker or snapshot."""
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
