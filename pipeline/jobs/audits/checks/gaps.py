"""The gap ledger: every offset of a range is a record or a marker.

*Source*: facts: spark.md 6, 8 (false alarms from rows that are not an offset delta).

*Invariants*: markers and aborted records are counted, so they are no gap. Compaction makes gaps,
so those of a compacted topic are figures; on any other topic they are findings.
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
    """Looks for offsets that hold nothing, and for records that Spark did not read.

    Args:
        ledgers: finished, of what was read.
        rows: records that Spark's read_committed gave of each partition.
        compacted: topics that have gaps by design.
        evidence_max: findings that are listed of each kind.
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
        visible=sum(one.visible for one in ledgers),
        aborted=sum(one.aborted for one in ledgers),
        markers=sum(one.markers for one in ledgers),
        unexplained=sum(one.unexplained for one in ledgers),
    )
