"""Equivalence: compares reading by aborted-index with Kafka's read_committed, at equal offsets.

*Source*: docs/protocols F2, F4.

*Invariants*: only partitions whose index covers the range are compared; the others are unknown.
Buckets (ranges of offsets) with equal count, bounds and hash hold the same records; for the first
buckets that differ, the finding names the records. On a compacted topic the cleaner may have run
between the two reads: there a difference proves nothing.

Gaps: checks that every offset of a range holds a record or a marker.

*Source*: the number of rows in Spark is no proof of gaps, since markers and aborted records take
offsets too; the batch headers of the log count all three.

*Invariants*: offsets of markers and of aborted records are no gaps. Compaction makes gaps, so gaps
of a compacted topic are figures; gaps of any other topic are findings.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.pipeline.core.native.offset_ledger import OffsetLedger
from stilltide.pipeline.jobs.audits.checks.findings import BUCKET_BITS
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Finding, FindingKind, Findings
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition


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
        visible = rows.get(data, 0)
        if visible != ledger.visible:
            findings.add(
                Finding(FindingKind.UNREAD, *data, ledger.read.start, None, ledger.visible, visible)
            )
    return CheckResult.of(
        Check.GAPS,
        findings,
        sum(it.read.end - it.read.start for it in ledgers if it.read.data.topic not in compacted),
        visible=sum(ledger.visible for ledger in ledgers),
        aborted=sum(ledger.aborted for ledger in ledgers),
        markers=sum(ledger.markers for ledger in ledgers),
        unexplained=sum(ledger.unexplained for ledger in ledgers),
    )


BUCKETS_NAMED_MAX = 5
"""Number of differing buckets whose records are looked up, by two small reads for each."""

_KEYS = ["topic", "partition", "bucket"]
_VALUES = ["rows", "offset", "last", "hash_high", "hash_low"]

Reread = Callable[[OffsetRange], tuple[DataFrame, DataFrame]]
"""Reads a range twice: filtered by aborted-index, and by Kafka's read_committed."""


class Comparison(NamedTuple):
    """The subject of a comparison.

    Attributes:
        data: the ranges that were read.
        uncovered: partitions whose aborted ranges are not known, and why.
        compacted: compacted topics, whose cleaner may have run between the two reads.
        reread: reads a bucket that differs again, both ways.
    """

    data: Sequence[OffsetRange]
    uncovered: Mapping[TopicPartition, str]
    compacted: Collection[str]
    reread: Reread


def check_equivalence(
    ours: DataFrame | None, theirs: DataFrame, of: Comparison, evidence_max: int
) -> CheckResult:
    """Compares bucket by bucket, then record by record where they differ.

    Args:
        ours: `bucket_sums` of the covered partitions, filtered by aborted-index; None when no
            partition is covered.
        theirs: `bucket_sums` of all partitions, by Kafka's read_committed.
        of: the subject of the comparison.
        evidence_max: number of findings of each kind to list.
    """
    findings = Findings(evidence_max)
    for place, why in sorted(of.uncovered.items()):
        findings.add(Finding(FindingKind.UNCOVERED, *place, None, None, None, None, why))
    compared = [read for read in of.data if read.data not in of.uncovered]
    if ours is not None:
        buckets = _different(ours, theirs, compared)
        for number, read in enumerate(buckets):
            is_compacted = read.data.topic in of.compacted
            kind = FindingKind.RECOUNTED if is_compacted else FindingKind.DIFFERENT
            if number >= BUCKETS_NAMED_MAX:
                findings.counts[kind] += 1
                continue
            for finding in _named(kind, read, *of.reread(read)):
                findings.add(finding)
    offsets = sum(read.end - read.start for read in compared)
    return CheckResult.of(
        Check.EQUIVALENCE, findings, offsets, partitions=len(compared), offsets_compared=offsets
    )


def _different(
    ours: DataFrame, theirs: DataFrame, data: Sequence[OffsetRange]
) -> list[OffsetRange]:
    """The buckets that differ, as ranges of offsets."""
    ranges = {read.data: read for read in data}
    names = {name: f"their_{name}" for name in _VALUES}
    joined = ours.join(theirs.withColumnsRenamed(names), on=_KEYS, how="full_outer")
    differs = F.lit(False)
    for mine, other in names.items():
        differs |= ~F.col(mine).eqNullSafe(F.col(other))
    differing = joined.filter(differs).select(*_KEYS).collect()
    buckets = sorted(
        (TopicPartition(topic, partition), bucket) for topic, partition, bucket in differing
    )
    return [_offsets(ranges[place], bucket) for place, bucket in buckets if place in ranges]


def _offsets(read: OffsetRange, bucket: int) -> OffsetRange:
    """The part of the range that belongs to a bucket."""
    first, end = bucket << BUCKET_BITS, (bucket + 1) << BUCKET_BITS
    return read._replace(start=Offset(max(first, read.start)), end=EndOffset(min(end, read.end)))


def _named(
    kind: FindingKind, read: OffsetRange, ours: DataFrame, theirs: DataFrame
) -> Iterator[Finding]:
    """A finding for each run of records that only one of the two frames has."""
    hashes = F.xxhash64("key", "value").alias("hash")
    mine = dict(ours.select("offset", hashes).collect())
    other = dict(theirs.select("offset", hashes).collect())
    run: list[int] = []
    for offset in sorted(mine.keys() | other.keys()):
        if mine.get(offset) == other.get(offset):
            if run:
                yield _finding(kind, read.data, run, mine, other)
            run = []
        else:
            run.append(offset)
    if run:
        yield _finding(kind, read.data, run, mine, other)


def _finding(
    kind: FindingKind,
    data: TopicPartition,
    run: list[int],
    mine: Mapping[int, int],
    other: Mapping[int, int],
) -> Finding:
    shown, expected = (sum(offset in side for offset in run) for side in (mine, other))
    if not expected:
        what = "aborted-index shows what Kafka hides"
    elif not shown:
        what = "aborted-index hides what Kafka shows"
    else:
        what = "the two reads differ"
    detail = f"offsets {run[0]} to {run[-1]}: {what}"
    return Finding(kind, *data, run[0], None, expected, shown, detail)
