"""From classified records to findings: one grouping of the data, then joins of small frames.

*Source*: docs/protocols C6, D1, D2, D6. All functions map frames to frames, except for
`collect_findings` and `find_unmarked`.

*Invariants*: a transaction whose records are all there is complete, even if the audited range cuts
through the transaction. If the range cuts through and records are missing, it is never complete.

Refuses nothing; a property that cannot be proved is a finding of its own kind.

Aggregates of the records of topics, computed once for all checks.

*Source*: count, first offset, last offset and a sum of row hashes of each bucket (a range of
offsets) compare two reads without a join of rows. All functions map frames to frames.

*Invariants*: the two 32-bit halves of the 64-bit hashes are summed separately, so the sums are
exact up to 2^31 records in a group.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import (
    VISIBILITY,
    DecidingFrames,
    Visibility,
    classify,
    delivered,
    digest_sums,
    with_txn,
)
from stilltide.pipeline.jobs.audits.report import Finding, FindingKind
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

BUCKET_BITS = 12
"""Low bits of an offset that are dropped to get the number of its bucket."""

_PLACE = ("topic", "partition")
_HASH_HALF_BITS = 32
_HASH_MASK = (1 << _HASH_HALF_BITS) - 1


def committed_groups(
    records: DataFrame, decisions: DecidingFrames, *, digest: bool, window_bits: int = BUCKET_BITS
) -> DataFrame:
    """One row for each (topic, partition, window, txn, visibility) of a read_committed scan.

    Args:
        records: records in the Kafka source's schema, with headers.
        decisions: frames that decide the records of coordinated transactions.
        digest: whether to add the content digest of visible records, which costs as much as the
            scan.
        window_bits: low bits of an offset that are dropped to get the number of its window, at most
            `BUCKET_BITS`, so that windows are parts of buckets.
    """
    assert window_bits <= BUCKET_BITS
    window = F.shiftright("offset", window_bits).alias("window")
    digests = dict(zip(("digest_high", "digest_low"), digest_sums(delivered()), strict=True))
    return (
        classify(with_txn(records), decisions)
        .groupBy(*_PLACE, window, "txn", VISIBILITY)
        .agg(*_sums(), *(one.alias(name) for name, one in digests.items() if digest))
    )


def by_transaction(groups: DataFrame) -> DataFrame:
    """The groups summed over windows, as `pipeline.jobs.audits.checks.findings` needs them."""
    sums = [name for name in ("rows", "digest_high", "digest_low") if name in groups.columns]
    return groups.groupBy(*_PLACE, "txn", VISIBILITY).agg(
        F.min("offset").alias("offset"),
        F.max("last").alias("last"),
        *(F.sum(name).alias(name) for name in sums),
    )


def by_bucket(groups: DataFrame, window_bits: int = BUCKET_BITS) -> DataFrame:
    """The groups summed over transactions and windows, in the form of `bucket_sums`."""
    bucket = F.shiftright("window", BUCKET_BITS - window_bits).alias("bucket")
    return groups.groupBy(*_PLACE, bucket).agg(
        F.min("offset").alias("offset"),
        F.max("last").alias("last"),
        *(F.sum(name).alias(name) for name in ("rows", "hash_high", "hash_low")),
    )


def bucket_sums(records: DataFrame) -> DataFrame:
    """Count, bounds and hash of the records of each (topic, partition, bucket)."""
    return records.groupBy(*_PLACE, _bucket()).agg(*_sums())


def _bucket() -> Column:
    return F.shiftright("offset", BUCKET_BITS).alias("bucket")


def _sums() -> tuple[Column, ...]:
    digest = F.xxhash64("offset", "key", "value")
    return (
        F.count("*").alias("rows"),
        F.min("offset").alias("offset"),
        F.max("offset").alias("last"),
        F.sum(F.shiftright(digest, _HASH_HALF_BITS)).alias("hash_high"),
        F.sum(digest.bitwiseAND(_HASH_MASK)).alias("hash_low"),
    )


_COMPLETE = "complete"
_KEYS = ["topic", "partition", "txn"]
_FINDING_COLUMNS = ["kind", *_KEYS, "offset", "expected", "found"]


class Unmarked(NamedTuple):
    """Transactions with visible records on a partition where no marker promises their number.

    Attributes:
        total: number of such transactions.
        uncounted: number of them without a commit marker on any partition.
        mixed_count: number of the uncounted ones that have aborted on another partition.
        mixed: the first transactions counted in `mixed_count`, sorted.
        spans: by partition, where their records begin and end.
        rows: number of their records.
    """

    total: int
    uncounted: int
    mixed_count: int
    mixed: tuple[TxnId, ...]
    spans: Mapping[TopicPartition, tuple[Offset, EndOffset]]
    rows: int


ALL_MARKED = Unmarked(0, 0, 0, (), {}, 0)


def collect_findings(
    groups: DataFrame,
    decisions: DecidingFrames,
    due: DataFrame,
    evidence_max: int,
    compacted: Collection[str] = (),
) -> tuple[Counter[FindingKind], list[Finding]]:
    """The number of findings of each kind, and the first `evidence_max` of each kind.

    `due` are the outcomes whose records are counted. On `compacted` topics the cleaner may have
    removed a missing record.
    """
    counted = count_findings(groups, due, compacted)
    rows = withheld_findings(groups, decisions).unionByName(counted)
    counts = Counter(
        {FindingKind(row["kind"]): row["count"] for row in rows.groupBy("kind").count().collect()}
    )
    if not counts:
        return counts, []
    first = Window.partitionBy("kind").orderBy("topic", "partition", "offset", "txn")
    evidence = (
        rows.withColumn("rank", F.row_number().over(first))
        .filter(F.col("rank") <= evidence_max)
        .orderBy("kind", "rank")
    )
    return counts, [_finding(row) for row in evidence.collect()]


def withheld_findings(groups: DataFrame, decisions: DecidingFrames) -> DataFrame:
    """A finding for each group of late, malformed or undecided records (D1, D2, D6)."""
    ended = decisions.outcomes.select("txn", F.lit(True).alias("ended")).distinct()
    kind = (
        F.when(F.col(VISIBILITY) == Visibility.LATE, FindingKind.LATE)
        .when(F.col(VISIBILITY) == Visibility.MALFORMED, FindingKind.MALFORMED)
        .when(F.col("ended"), FindingKind.ORPHAN)
        .otherwise(FindingKind.UNDECIDED)
    )
    withheld = [Visibility.LATE.value, Visibility.MALFORMED.value, Visibility.UNDECIDED.value]
    return (
        groups.filter(F.col(VISIBILITY).isin(withheld))
        .join(decisions.beside(ended), on="txn", how="left")
        .withColumns({"kind": kind, "expected": F.lit(None).cast("long"), "found": F.col("rows")})
        .select(*_FINDING_COLUMNS)
    )


def count_findings(
    groups: DataFrame, outcomes: DataFrame, compacted: Collection[str] = ()
) -> DataFrame:
    """A finding for each committed (transaction, partition) whose records do not add up (C6)."""
    visible = groups.filter(F.col(VISIBILITY) == Visibility.VISIBLE).select(*_KEYS, "rows")
    return (
        outcomes.filter(F.col("committed") & F.col("record_count").isNotNull())
        .join(visible, on=_KEYS, how="left")
        .withColumn("found", F.coalesce("rows", F.lit(0).cast("long")))
        .withColumn("kind", _completeness(compacted))
        .filter(F.col("kind") != _COMPLETE)
        .withColumns({"offset": F.col("start_offset"), "expected": F.col("record_count")})
        .select(*_FINDING_COLUMNS)
    )


def find_unmarked(groups: DataFrame, decisions: DecidingFrames, evidence_max: int) -> Unmarked:
    """The transactions with visible records whose number no marker promises (C6)."""
    outcomes = decisions.outcomes
    of_txn = outcomes.groupBy("txn").agg(
        F.max("committed").alias("committed"), F.max(~F.col("committed")).alias("aborted")
    )
    promised = outcomes.filter(F.col("record_count").isNotNull()).select(*_KEYS)
    uncounted = ~F.coalesce("committed", F.lit(False))
    here = groups.filter(F.col("txn").isNotNull() & (F.col(VISIBILITY) == Visibility.VISIBLE)).join(
        decisions.beside(promised), on=_KEYS, how="left_anti"
    )
    places = (
        here.groupBy("topic", "partition")
        .agg(F.min("offset").alias("first"), F.max("last").alias("last"), F.sum("rows").alias("n"))
        .collect()
    )
    if not places:
        return ALL_MARKED
    unmarked = (
        here.join(decisions.beside(of_txn), on="txn", how="left")
        .groupBy("txn")
        .agg(
            F.first(uncounted).alias("uncounted"),
            F.first(uncounted & F.coalesce("aborted", F.lit(False))).alias("mixed"),
        )
    )
    row = unmarked.agg(
        F.count("*"), F.count_if(F.col("uncounted")), F.count_if(F.col("mixed"))
    ).first()
    assert row is not None
    total, uncounted_count, mixed_count = row
    mixed = unmarked.filter("mixed").select("txn").orderBy("txn").limit(evidence_max)
    rows = mixed.collect() if mixed_count else []
    ids = tuple(TxnId.from_bytes(bytes(row["txn"])) for row in rows)
    spans = {
        TopicPartition(place["topic"], place["partition"]): (
            Offset(place["first"]),
            EndOffset(place["last"] + 1),
        )
        for place in places
    }
    rows_total = sum(place["n"] for place in places)
    return Unmarked(total, uncounted_count, mixed_count, ids, spans, rows_total)


def _completeness(compacted: Collection[str]) -> Column:
    """The kind of finding, or complete; a transaction wholly outside the range is complete.

    A transaction with all its records is complete, even if the range cuts through it.
    """
    actual, expected = F.col("found"), F.col("record_count")
    start, end = F.col("start_offset"), F.col("end_offset")
    return (
        F.when(actual > expected, FindingKind.SURPLUS)
        .when((actual == expected) | _outside(), _COMPLETE)
        .when(start < F.col("range_start"), FindingKind.TRIMMED)
        .when(F.col("topic").isin(*compacted), FindingKind.TRIMMED)
        .when(end > F.col("range_end"), FindingKind.BEYOND_END)
        .otherwise(FindingKind.MISSING)
    )


def _outside() -> Column:
    """Whether a transaction is wholly outside the audited range of its partition."""
    start, end = F.col("start_offset"), F.col("end_offset")
    return (end <= F.col("range_start")) | (start >= F.col("range_end"))


def _finding(row: Row) -> Finding:
    return Finding(
        kind=FindingKind(row["kind"]),
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        txn=TxnId.from_bytes(bytes(row["txn"])) if row["txn"] is not None else None,
        expected=row["expected"],
        found=row["found"],
    )
