"""Leaks: does a downstream table hold only records that readers may see?

*Source*: docs/protocols D1, D2, D3, F2. The columns `topic`, `partition` and `offset` of a table
name the records that the table was made from.

*Invariants*: a record that is not proved to be visible is a finding. Rows of topics that are not
audited are ignored.

Refuses: tables without those columns; the verdict is then unknown.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.spark.errors import spark_errors
from stilltide.connectors.spark.read_committed import VISIBILITY, Visibility
from stilltide.connectors.spark.source import frame_of_rows
from stilltide.pipeline.jobs.audits.report import Check, CheckResult, Finding, FindingKind, Findings
from stilltide.schemas.values import OffsetRange

_COLUMNS = {"topic": "string", "partition": "bigint", "offset": "bigint"}
_KEYS = list(_COLUMNS)
_NULLS = " or ".join(f"{name} is null" for name in _COLUMNS)
_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_GONE = "gone"
_OUTSIDE = "outside"
_COMPACTED = "compacted"
_DETAILS = {
    Visibility.HIDDEN: "of an aborted coordinated transaction",
    _GONE: "no reader of the topic sees a record there: it aborted, or never was",
    _OUTSIDE: "outside of the offsets that were audited",
    Visibility.LATE: "of a committed transaction, past its end",
    Visibility.MALFORMED: "with a malformed `txn` header",
    Visibility.UNDECIDED: "of a transaction that has no outcome yet",
    _COMPACTED: "a cleaner may have taken the record since",
}
_UNJUDGED = (_OUTSIDE, Visibility.UNDECIDED, _COMPACTED)


class Audited(NamedTuple):
    """The audited records with which tables are compared.

    Attributes:
        records: the records of `data` that read_committed shows, with the column `visibility`.
        data: the audited ranges.
        compacted: compacted topics, where a record that was visible may be gone.
    """

    records: DataFrame
    data: Sequence[OffsetRange]
    compacted: Collection[str]


def check_leaks(
    spark: SparkSession, paths: Sequence[str], audited: Audited, evidence_max: int
) -> CheckResult:
    """Looks up each record that the tables name.

    Args:
        spark: the session.
        paths: paths of Parquet tables.
        audited: the audited records.
        evidence_max: number of findings of each kind to list.
    """
    findings, rows = Findings(evidence_max), 0
    topics = sorted({read.data.topic for read in audited.data})
    ranges = F.broadcast(_ranges(spark, audited.data))
    for path in paths:
        table = _table(spark, path, findings)
        if table is None:
            continue
        named = table.filter(F.col("topic").isin(*topics))
        rows += named.count()
        placed = named.join(ranges, on=["topic", "partition"], how="left")
        _look_up(placed, audited, path, findings)
    return CheckResult.of(Check.LEAKS, findings, rows, tables=len(paths), rows=rows)


def _look_up(placed: DataFrame, audited: Audited, path: str, findings: Findings) -> None:
    inside = (F.col("offset") >= F.col("start")) & (F.col("offset") < F.col("end"))
    state = (
        F.when(~F.coalesce(inside, F.lit(False)), _OUTSIDE)
        .when(F.col(VISIBILITY).isNotNull(), F.col(VISIBILITY))
        .when(F.col("topic").isin(*audited.compacted), _COMPACTED)
        .otherwise(_GONE)
    )
    visible = [Visibility.VISIBLE.value, Visibility.PLAIN.value]
    leaked = (
        placed.join(audited.records.select(*_KEYS, VISIBILITY), on=_KEYS, how="left")
        .withColumn("state", state)
        .filter(~F.col("state").isin(*visible))
        .groupBy(*_KEYS, "state")
        .count()
        .persist()
    )
    try:
        counts = {row["state"]: row["count"] for row in leaked.groupBy("state").count().collect()}
        for name, count in sorted(counts.items()):
            kind = FindingKind.UNJUDGED if name in _UNJUDGED else FindingKind.LEAKED
            these = leaked.filter(F.col("state") == name).orderBy(*_KEYS)
            evidence = these.limit(findings.evidence_max).collect()
            for row in evidence:
                place = row["topic"], row["partition"], row["offset"]
                detail = f"{path}: {_DETAILS[name]}"
                findings.add(Finding(kind, *place, None, 0, row["count"], detail))
            findings.counts[kind] += count - len(evidence)
    finally:
        leaked.unpersist()


def _table(spark: SparkSession, path: str, findings: Findings) -> DataFrame | None:
    """The records that a table names; None, and a finding, when the table cannot be read."""
    table, problem = None, ""
    try:
        with spark_errors(path):
            table = spark.read.parquet(path)
            problem = _problem(dict(table.dtypes))
            if not problem and (nulls := table.filter(_NULLS).count()):
                problem = f"{nulls} rows do not name a record"
    except ConnectorError as error:
        problem = error.detail or error.primary
    if problem or table is None:
        detail = f"{path}: {problem}"
        findings.add(Finding(FindingKind.UNREADABLE, None, None, None, None, None, None, detail))
        return None
    return table.select(*(F.col(name).cast(kind) for name, kind in _COLUMNS.items()))


def _problem(types: Mapping[str, str]) -> str:
    """The problem of the columns; empty when they are as needed."""
    for name, wanted in _COLUMNS.items():
        actual = types.get(name)
        if actual is None:
            return f"there is no column {name}"
        if actual != wanted and (wanted == "string" or actual not in _INTEGERS):
            return f"column {name} is {actual}, not {wanted}"
    return ""


def _ranges(spark: SparkSession, data: Sequence[OffsetRange]) -> DataFrame:
    rows = [(*read.data, read.start, read.end) for read in data]
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("start", pa.int64()),
            ("end", pa.int64()),
        ]
    )
    return frame_of_rows(spark, rows, schema)
