"""Two reads of the same offsets, compared without Kafka."""

from collections.abc import Iterable, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from stilltide.pipeline.jobs.audits.checks.equivalence import (
    BUCKETS_NAMED_MAX,
    Comparison,
    check_equivalence,
)
from stilltide.pipeline.jobs.audits.checks.findings import BUCKET_BITS, bucket_sums
from stilltide.pipeline.jobs.audits.report import CheckResult, Finding, FindingKind
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition
from tests.support.spark.session import kafka_frame

DATA = TopicPartition("orders", 0)
BUCKET = 1 << BUCKET_BITS
END = 10 * BUCKET


def compare(
    spark: SparkSession,
    ours: Iterable[int],
    theirs: Iterable[int],
    *,
    uncovered: dict[TopicPartition, str] | None = None,
    compacted: Sequence[str] = (),
) -> CheckResult:
    """The answer about two sets of offsets."""
    mine, other = (kafka_frame(spark, [(it, None) for it in each]) for each in (ours, theirs))

    def reread(read: OffsetRange) -> tuple[DataFrame, DataFrame]:
        inside = f"offset >= {read.start} and offset < {read.end}"
        return mine.filter(inside), other.filter(inside)

    data = [OffsetRange(DATA, Offset(0), EndOffset(END))]
    of = Comparison(data, uncovered or {}, compacted, reread)
    return check_equivalence(bucket_sums(mine), bucket_sums(other), of, evidence_max=20)


def test_equal_reads_differ_in_nothing(spark: SparkSession):
    """Over several buckets, with gaps."""
    offsets = [1, 2, 5, BUCKET - 1, BUCKET, 3 * BUCKET + 7]
    result = compare(spark, offsets, offsets)
    assert result.finding_counts == {}
    assert result.figures == {"partitions": 1, "offsets_compared": END}


@pytest.mark.parametrize(
    ("ours", "theirs", "finding"),
    [
        ([1, 2, 3, 9], [1, 9], (2, 0, 2, "offsets 2 to 3: aborted-index shows what Kafka hides")),
        ([1], [1, 4], (4, 1, 0, "offsets 4 to 4: aborted-index hides what Kafka shows")),
        ([], [BUCKET], (BUCKET, 1, 0, f"offsets {BUCKET} to {BUCKET}: aborted-index hides")),
    ],
)
def test_what_differs_is_named(
    spark: SparkSession,
    ours: list[int],
    theirs: list[int],
    finding: tuple[int, int, int, str],
):
    """Offset, how many Kafka shows, how many we do; also where one has nothing at all."""
    result = compare(spark, ours, theirs)
    offset, expected, found, detail = finding
    (one,) = result.findings
    assert one.detail.startswith(detail)
    kind = FindingKind.DIFFERENT
    assert one == Finding(kind, *DATA, offset, None, expected, found, one.detail)


def test_as_many_records_at_other_offsets_differ(spark: SparkSession):
    """Count, first and last are the same: the hashes tell."""
    result = compare(spark, [1, 2, 9], [1, 3, 9])
    assert result.finding_counts == {FindingKind.DIFFERENT: 1}
    assert [(one.expected, one.found) for one in result.findings] == [(1, 1)]


def test_only_the_first_buckets_are_looked_into(spark: SparkSession):
    """All that differ are counted."""
    offsets = [number * BUCKET for number in range(BUCKETS_NAMED_MAX + 3)]
    result = compare(spark, offsets, [])
    assert result.finding_counts == {FindingKind.DIFFERENT: BUCKETS_NAMED_MAX + 3}
    assert len(result.findings) == BUCKETS_NAMED_MAX


def test_what_cannot_be_compared_is_unknown(spark: SparkSession):
    """Without coverage nothing is compared; a cleaner may have run between the reads."""
    result = compare(spark, [1], [2], uncovered={DATA: "behind"})
    assert result.finding_counts == {FindingKind.UNCOVERED: 1}
    assert result.findings[0].detail == "behind"
    result = compare(spark, [1, 2], [2], compacted=["orders"])
    assert result.finding_counts == {FindingKind.RECOUNTED: 1}
