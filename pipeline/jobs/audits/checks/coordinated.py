"""Judges coordinated transactions: makes figures and findings from grouped records.

*Source*: docs/protocols C6, D1, D2, D3, D4, D6, E8.

*Invariants*: a record that cannot be judged makes the verdict unknown, never valid. A transaction
whose marker is gone has no known record count: it is counted as unchecked, and a finding of its
partition says below which offsets such transactions are.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import (
    VISIBILITY,
    DecidingFrames,
    Visibility,
    digest_of_sums,
)
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.audits.carried import NOTHING, Carried
from stilltide.pipeline.jobs.audits.checks.findings import (
    Unmarked,
    collect_findings,
    find_unmarked,
)
from stilltide.pipeline.jobs.audits.report import (
    Check,
    CheckResult,
    Finding,
    FindingKind,
    Findings,
    PartitionAudit,
)
from stilltide.pipeline.jobs.outcomes import mixed_transactions, of_current_topic
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.values import OffsetRange, TopicPartition, TxnId


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of the coordinated transactions on some partitions.

    Attributes:
        partitions: counts of each partition, in the order of the evidence.
        committed: number of distinct transactions of the range with a commit marker or a visible
            record.
        counted: number of them whose records were counted against a marker on some partition.
        aborted: number of distinct transactions with an abort marker, or listed in a snapshot.
        unmarked: the committed transactions whose marker, with its record count, is gone (C6).
        finding_counts: number of findings of each kind; kinds without findings are absent.
        findings: listed findings, a bounded number of each kind.
    """

    partitions: tuple[PartitionAudit, ...]
    committed: int
    counted: int
    aborted: int
    unmarked: Unmarked
    finding_counts: Counter[FindingKind]
    findings: tuple[Finding, ...]


def judge(
    groups: DataFrame,
    decisions: DecidingFrames,
    evidence: TopicOutcomes,
    evidence_max: int,
    compacted: Collection[str] = (),
    *,
    carried: Carried = NOTHING,
) -> Judgement:
    """Judges the groups of `by_transaction`; runs several Spark jobs, so persist `groups` first.

    Args:
        groups: the frame of `by_transaction`, with or without digests.
        decisions: the decisions that classified the records of `groups`.
        evidence: the evidence that the decisions were made from.
        evidence_max: number of findings of each kind to list.
        compacted: compacted topics, whose cleaner may have removed records.
        carried: what is known of earlier windows.
    """
    counted, due = carried.with_counts(groups), carried.due(decisions.outcomes)
    counts, findings = collect_findings(counted, decisions, due, evidence_max, compacted)
    unmarked = find_unmarked(groups, decisions, evidence_max)
    mixed = mixed_transactions(evidence)
    if mixed or unmarked.mixed_count:
        counts[FindingKind.MIXED] = len(mixed) + unmarked.mixed_count
    committed, aborted = _committed(evidence, carried), _aborted_count(evidence)
    return Judgement(
        partitions=_partition_audits(groups, evidence),
        committed=committed + unmarked.uncounted,
        counted=committed,
        aborted=aborted,
        unmarked=unmarked,
        finding_counts=counts,
        findings=(*findings, *map(_mixed, [*mixed, *unmarked.mixed][:evidence_max])),
    )


def coordinated_checks(
    judgement: Judgement,
    evidence_max: int,
    *,
    accept_unchecked: bool = False,
    compacted: Collection[str] = (),
) -> list[CheckResult]:
    """The checks of coordinated transactions.

    Args:
        judgement: the judgement.
        evidence_max: number of findings of each kind to list.
        accept_unchecked: whether `Check.COUNTS` is not unknown because record counts of committed
            transactions are gone (C6).
        compacted: topics that compact and should not (C18).
    """
    findings, unmarked = Findings(evidence_max), judgement.unmarked
    findings.add_all(judgement.finding_counts, judgement.findings)
    for data, (first, end) in sorted(unmarked.spans.items()):
        kind = FindingKind.ACCEPTED if accept_unchecked else FindingKind.UNCOUNTED
        detail = f"offsets below {end}: counts no longer known"
        findings.add(Finding(kind, *data, first, None, None, None, detail))
    for audit in judgement.partitions:
        of_txns = audit.written - audit.plain - audit.malformed
        if of_txns and audit.topic in compacted:
            place = audit.topic, audit.partition, audit.start_offset
            detail = f"{of_txns} records of transactions in a topic that compacts"
            findings.add(Finding(FindingKind.COMPACTED, *place, None, None, of_txns, detail))
    names = ("written", "visible", "hidden", "late", "plain", "malformed")
    total = {name: sum(getattr(one, name) for one in judgement.partitions) for name in names}
    visible, late = {"visible": total["visible"]}, total["late"]
    of_txns = total["written"] - total["plain"] - total["malformed"]
    marked = total["visible"] - total["plain"] - unmarked.rows + late
    ended = {"committed": judgement.committed, "aborted": judgement.aborted}
    counts = {"committed": judgement.committed, "unchecked": unmarked.total}
    return [
        CheckResult.of(Check.HEADERS, findings, total["written"], records=total["written"]),
        CheckResult.of(Check.ORPHANS, findings, of_txns, **visible, hidden=total["hidden"]),
        CheckResult.of(Check.LATE, findings, marked, **visible),
        CheckResult.of(Check.COUNTS, findings, judgement.counted, **counts),
        CheckResult.of(Check.ATOMICITY, findings, sum(ended.values()), **ended),
    ]


def _partition_audits(groups: DataFrame, evidence: TopicOutcomes) -> tuple[PartitionAudit, ...]:
    names = [name for name in ("rows", "digest_high", "digest_low") if name in groups.columns]
    sums = [F.sum(name).alias(name) for name in names]
    by_partition: dict[TopicPartition, dict[str, Row]] = {read.data: {} for read in evidence.data}
    for row in groups.groupBy("topic", "partition", VISIBILITY).agg(*sums).collect():
        by_partition[TopicPartition(row["topic"], row["partition"])][row[VISIBILITY]] = row
    digests = len(names) > 1
    return tuple(_partition_audit(read, by_partition[read.data], digests) for read in evidence.data)


def _partition_audit(read: OffsetRange, groups: dict[str, Row], digests: bool) -> PartitionAudit:  # noqa: FBT001 - private, one caller
    rows = {kind: groups[kind]["rows"] if kind in groups else 0 for kind in Visibility}
    digest = None
    if digests:
        parts = (digest_of_sums(row["digest_high"], row["digest_low"]) for row in groups.values())
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


def _committed(evidence: TopicOutcomes, carried: Carried) -> int:
    """The number of transactions with a commit marker for records of the audited range.

    Of windows, one transaction belongs to the window of its lowest partition. Those that are
    counted again are left out, since most of them are known from an earlier window.
    """
    ranges = {read.data: read for read in evidence.data}
    lowest: dict[TxnId, Marker] = {}
    for marker in evidence.markers:
        if marker.committed and of_current_topic(marker, evidence):
            read, end = ranges[marker.data], marker.end_offset
            start = carried.origins.get(marker.data, read.start)
            within = end is not None and end > start and marker.start_offset < read.end
            known = lowest.get(marker.txn)
            if within and (known is None or marker.data < known.data):
                lowest[marker.txn] = marker
    return sum(
        carried.is_due(marker, ranges[marker.data]) and (marker.data, txn) not in carried.again
        for txn, marker in lowest.items()
    )


def _aborted_count(evidence: TopicOutcomes) -> int:
    """The number of transactions with an abort in a marker or snapshot."""
    aborted: defaultdict[int, set[int]] = defaultdict(set)
    for marker in evidence.markers:
        if not marker.committed and of_current_topic(marker, evidence):
            aborted[marker.txn.coordinator].add(marker.txn.sequence)
    for snapshot in evidence.snapshots.values():
        for coordinator, sequences in snapshot.aborted.by_coordinator().items():
            aborted[coordinator] |= sequences
    return sum(map(len, aborted.values()))
