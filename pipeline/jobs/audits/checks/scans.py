"""Aggregates of the records of topics, computed once for all checks.

*Source*: count, first offset, last offset and a sum of row hashes of each bucket (a range of
offsets) compare two reads without a join of rows. All functions map frames to frames.

*Invariants*: the two 32-bit halves of the 64-bit hashes are summed separately, so the sums are
exact up to 2^31 records in a group.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import (
    VISIBILITY,
    Decisions,
    classify,
    delivered,
    digest_sums,
    with_txn,
)

BUCKET_BITS = 12
"""Low bits of an offset that are dropped to get the number of its bucket."""

_PLACE = ("topic", "partition")
_HASH_HALF_BITS = 32
_HASH_MASK = (1 << _HASH_HALF_BITS) - 1


def committed_groups(
    records: DataFrame, decisions: Decisions, *, digest: bool, window_bits: int = BUCKET_BITS
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
