"""Tables held against classified records, without Kafka."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from stilltide.connectors.spark.read_committed import VISIBILITY, Visibility
from stilltide.pipeline.jobs.audits.checks.leaks import Audited, check_leaks
from stilltide.pipeline.jobs.audits.report import CheckResult, FindingKind, Verdict
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

DATA = TopicPartition("orders", 0)
RECORDS = {
    10: Visibility.PLAIN,
    11: Visibility.VISIBLE,
    12: Visibility.HIDDEN,
    13: Visibility.LATE,
    14: Visibility.MALFORMED,
    15: Visibility.UNDECIDED,
}
"""Offset 16 holds nothing."""


def check(
    spark: SparkSession, path: Path, *, compacted: tuple[str, ...] = (), evidence_max: int = 20
) -> CheckResult:
    """The answer about a table, of `[10, 20)` of one partition."""
    rows = [(*DATA, offset, kind.value) for offset, kind in RECORDS.items()]
    ddl = f"topic string, partition int, offset bigint, {VISIBILITY} string"
    records = spark.createDataFrame(rows, ddl)
    audited = Audited(records, [OffsetRange(DATA, Offset(10), EndOffset(20))], compacted)
    return check_leaks(spark, [str(path)], audited, evidence_max)


def written(path: Path, **columns: Any) -> Path:
    """A table."""
    pq.write_table(pa.table(columns), path / "table.parquet")
    return path / "table.parquet"


def naming(path: Path, *offsets: int, topic: str = "orders") -> Path:
    """A table that names these records."""
    count = len(offsets)
    return written(
        path, topic=[topic] * count, partition=[0] * count, offset=list(offsets), more=[1] * count
    )


def test_visible_records_may_be_there_often(spark: SparkSession, tmp_path: Path):
    """And those of topics that are not audited do not count."""
    result = check(spark, naming(tmp_path, 10, 11, 11))
    assert (result.verdict, result.figures) == (Verdict.VALID, {"tables": 1, "rows": 3})
    result = check(spark, naming(tmp_path, 12, topic="others"))
    assert (result.verdict, result.figures) == (Verdict.EMPTY, {"tables": 1, "rows": 0})


def test_every_other_record_is_a_finding(spark: SparkSession, tmp_path: Path):
    """Hidden, late, malformed, or none at all: leaked. Undecided, or out of the range: unjudged."""
    result = check(spark, naming(tmp_path, *range(9, 21), 12))
    leaked, unjudged = FindingKind.LEAKED, FindingKind.UNJUDGED
    assert {one.offset: one.kind for one in result.findings} == {
        **dict.fromkeys((12, 13, 14, 16, 17, 18, 19), leaked),
        **dict.fromkeys((9, 15, 20), unjudged),
    }
    assert result.finding_counts == {leaked: 7, unjudged: 3}
    assert {one.offset: one.found for one in result.findings}[12] == 2


def test_a_cleaner_may_have_taken_a_record(spark: SparkSession, tmp_path: Path):
    """What is not there any more on a compacted topic may have been visible."""
    result = check(spark, naming(tmp_path, 16), compacted=("orders",))
    assert result.finding_counts == {FindingKind.UNJUDGED: 1}


def test_leaks_are_listed_up_to_a_number_and_counted_all(spark: SparkSession, tmp_path: Path):
    """The first by offset."""
    result = check(spark, naming(tmp_path, 19, 18, 17, 16), evidence_max=2)
    assert result.finding_counts == {FindingKind.LEAKED: 4}
    assert [one.offset for one in result.findings] == [16, 17]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"topic": ["orders"], "partition": [0]}, "no column offset"),
        ({"topic": [1], "partition": [0], "offset": [1]}, "topic is bigint"),
        ({"topic": ["orders"], "partition": ["0"], "offset": [1]}, "partition is string"),
        ({"topic": ["orders"], "partition": [0], "offset": pa.array([None], pa.int64())}, "1 rows"),
    ],
)
def test_a_table_that_names_no_records_is_unknown(
    spark: SparkSession, tmp_path: Path, columns: dict[str, Any], why: str
):
    """Missing columns, other types, nulls."""
    result = check(spark, written(tmp_path, **columns))
    assert (result.verdict, result.finding_counts) == (
        Verdict.UNKNOWN,
        {FindingKind.UNREADABLE: 1},
    )
    assert why in result.findings[0].detail


def test_no_table_is_unknown(spark: SparkSession, tmp_path: Path):
    """Neither a path that is not there nor a file that is no Parquet is a clean bill."""
    (tmp_path / "text.parquet").write_text("no parquet")
    for name in ("nowhere", "text.parquet"):
        result = check(spark, tmp_path / name)
        assert result.finding_counts == {FindingKind.UNREADABLE: 1}, name
