"""Gaps: checks that every offset of a range holds a record or a marker.

*Source*: the number of rows in Spark is no proof of gaps, since markers and aborted records take
offsets too; the batch headers of the log count all three.

*Invariants*: offsets of markers and of aborted records are no gaps. Compaction makes gaps, so gaps
of a compacted topic are figures; gaps of any other topic are findings.
"""

from collections.abc import Collection, Mapping, Sequence

from stilltide.pipeline.core.native.offset_ledger import OffsetLedger
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Findings
from stilltide.pipeline.jobs.audits.verdicts import Finding, FindingKind
from stilltide.schemas.values import TopicPartition


def check_gaps(
    ledgers: Sequence[OffsetLedger],
    rows: Mapping[TopicPartition, int],
    compacted: Collection[str],
    evidence_max: int,
) -> CheckResult:
    """Looks for offsets without record or marker, and for records that Spark did not read.

    Args:
        ledgers: finished ledgers of the ranges that were read.
        rows: number of records of each partition that Spark read at read_committed.
        compacted: compacted topics, which have gaps by design.
        evidence_max: number of findings of each kind to list.
    """
    findings = Findings(evidence_max)
    for ledger in ledgers:
        data = ledger.read.data
        if data.topic in compacted:
            continue
        for gap in ledger.gaps:
            detail = f"offsets {gap.first} to {gap.end - 1}: {gap.missing} hold nothing"
            findings.add(
                Finding(
                    FindingKind.UNEXPLAINED,
                    *data,
                    gap.first,
                    None,
                    gap.end - gap.first,
                    gap.end - gap.first - gap.missing,
                    detail,
                )
            )
        if ledger.gap_count > len(ledger.gaps):
            findings.counts[FindingKind.UNEXPLAINED] += ledger.gap_count - len(ledger.gaps)
        found = rows.get(data, 0)
        if found != ledger.visible:
            findings.add(
                Finding(FindingKind.UNREAD, *data, ledger.read.start, None, ledger.visible, found)
            )
    return CheckResult.of(
        Check.GAPS,
        findings,
        sum(it.read.end - it.read.start for it in ledgers if it.read.data.topic not in compacted),
        visible=sum(one.visible for one in ledgers),
        aborted=sum(one.aborted for one in ledgers),
        markers=sum(one.markers for one in ledgers),
        unexplained=sum(one.unexplained for one in ledgers),
    )
