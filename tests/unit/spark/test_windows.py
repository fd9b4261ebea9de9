"""Shares of aborted coordinated records along offsets, from the groups of the one scan."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import Visibility
from stilltide.pipeline.core.native.offset_ledger import WINDOWS_MAX, Window
from stilltide.pipeline.jobs.audits.checks.findings import BUCKET_BITS, bucket_sums, by_bucket
from stilltide.pipeline.jobs.audits.checks.windows import (
    coordinated_windows,
    group_bits,
    window_bits,
)
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

GROUPS = "topic string, partition int, window bigint, txn binary, visibility string, rows bigint"


def range_of(partition: int, start: int, end: int) -> OffsetRange:
    """The range of a partition of `t`."""
    return OffsetRange(TopicPartition("t", partition), Offset(start), EndOffset(end))


@pytest.mark.parametrize("start", [0, 1, 12_345])
@pytest.mark.parametrize("size", [0, 1, 199, 200, 201, 5000, 819_200, 10**9, 2**62])
def test_the_number_of_windows_is_bounded(size: int, start: int):
    """At most one more than `WINDOWS_MAX`, and groups are parts of windows and of buckets."""
    data = [range_of(0, start, start + size), range_of(1, 0, size // 2)]
    bits = window_bits(data)
    assert ((start + size - 1) >> bits) - (start >> bits) <= WINDOWS_MAX
    assert size <= WINDOWS_MAX or size >> bits >= WINDOWS_MAX // 4
    assert group_bits(data) == min(bits, BUCKET_BITS)


def test_windows_hold_visible_and_hidden_records(spark: SparkSession):
    """Plain records are visible; others, and partitions not asked for, are in no window."""
    data = [range_of(0, 5, 1605), range_of(1, 0, 100), range_of(2, 0, 10)]
    assert (window_bits(data), group_bits(data)) == (3, 3)
    rows = [
        ("t", 0, 0, b"a", Visibility.HIDDEN.value, 3),
        ("t", 0, 2, b"a", Visibility.HIDDEN.value, 1),
        ("t", 0, 2, b"b", Visibility.HIDDEN.value, 1),
        ("t", 0, 2, b"c", Visibility.VISIBLE.value, 2),
        ("t", 0, 2, None, Visibility.PLAIN.value, 3),
        ("t", 0, 200, b"d", Visibility.UNDECIDED.value, 5),
        ("t", 1, 12, b"d", Visibility.VISIBLE.value, 4),
        ("t", 2, 0, b"a", Visibility.HIDDEN.value, 10),
    ]
    groups = spark.createDataFrame(rows, GROUPS)
    assert coordinated_windows(groups, data, 2) == {
        TopicPartition("t", 0): [
            Window(5, 8, 0, 3, 0),
            Window(16, 24, 5, 2, 0),
            Window(1600, 1605, 0, 0, 0),
        ],
        TopicPartition("t", 1): [Window(96, 100, 4, 0, 0)],
    }
    assert coordinated_windows(groups, [], 2) == {}


def test_wide_partitions_have_windows_of_several_buckets(spark: SparkSession):
    """Then groups are buckets, as without plots."""
    data = [range_of(0, 0, 4 * 200 << BUCKET_BITS)]
    assert (window_bits(data), group_bits(data)) == (BUCKET_BITS + 2, BUCKET_BITS)
    rows = [("t", 0, number, b"a", Visibility.HIDDEN.value, 1) for number in range(6)]
    found = coordinated_windows(spark.createDataFrame(rows, GROUPS), data, 1)
    width = 4 << BUCKET_BITS
    assert found[data[0].data] == [Window(0, width, 0, 4, 0), Window(width, 2 * width, 0, 2, 0)]


def test_buckets_are_the_same_from_finer_windows(spark: SparkSession):
    """What is compared with Kafka's read does not depend on the plot."""
    rows = [("t", 0, offset, b"k", b"v") for offset in range(0, 10_000, 7)]
    records = spark.createDataFrame(
        rows, "topic string, partition int, offset bigint, key binary, value binary"
    )
    digest = F.xxhash64("offset", "key", "value")
    groups = records.groupBy("topic", "partition", F.shiftright("offset", 3).alias("window")).agg(
        F.count("*").alias("rows"),
        F.min("offset").alias("offset"),
        F.max("offset").alias("last"),
        F.sum(F.shiftright(digest, 32)).alias("hash_high"),
        F.sum(digest.bitwiseAND((1 << 32) - 1)).alias("hash_low"),
    )
    columns = ("bucket", "rows", "offset", "last", "hash_high", "hash_low")
    ours, theirs = by_bucket(groups, 3).select(*columns), bucket_sums(records).select(*columns)
    assert sorted(map(tuple, ours.collect())) == sorted(map(tuple, theirs.collect()))
