"""Shares of hidden records along the offsets of partitions, from the groups of the one scan.

*Source*: docs/protocols D1, D4. Costs one aggregation of groups that Spark has kept.

*Invariants*: a partition has at most `WINDOWS_MAX + 1` windows, so that what is collected is
bounded by the number of partitions asked for.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import VISIBILITY, Visibility
from stilltide.pipeline.core.native.offset_ledger import WINDOWS_MAX, Window
from stilltide.pipeline.jobs.audits.checks.findings import BUCKET_BITS
from stilltide.schemas.values import OffsetRange, TopicPartition


def window_bits(data: Sequence[OffsetRange]) -> int:
    """Low bits of an offset that are dropped to get the number of its window."""
    widest = max((read.end - read.start for read in data), default=0)
    return (max(0, widest - 1) // WINDOWS_MAX).bit_length()


def group_bits(data: Sequence[OffsetRange]) -> int:
    """The bits for `committed_groups`: its groups are parts of windows, and of buckets."""
    return min(BUCKET_BITS, window_bits(data))


def coordinated_windows(
    groups: DataFrame, data: Sequence[OffsetRange], count: int
) -> dict[TopicPartition, list[Window]]:
    """Visible and hidden records in each window of the first `count` partitions; blocks.

    Args:
        groups: the frame of `committed_groups` with `group_bits(data)`.
        data: all audited ranges.
        count: number of partitions.
    """
    shown = data[:count]
    if not shown:
        return {}
    bits = window_bits(data)
    counts: dict[TopicPartition, dict[int, tuple[int, int]]] = {read.data: {} for read in shown}
    window = F.shiftright("window", bits - group_bits(data)).alias("window")
    rows = (
        groups.where(reduce(Column.__or__, map(_is_of, shown)))
        .groupBy("topic", "partition", window)
        .agg(
            _rows_of(Visibility.VISIBLE, Visibility.PLAIN).alias("visible"),
            _rows_of(Visibility.HIDDEN).alias("hidden"),
        )
    )
    for row in rows.collect():
        place = TopicPartition(row["topic"], row["partition"])
        counts[place][row["window"]] = row["visible"], row["hidden"]
    return {read.data: _windows(read, counts[read.data], bits) for read in shown}


def _is_of(read: OffsetRange) -> Column:
    topic, partition = read.data
    return (F.col("topic") == F.lit(topic)) & (F.col("partition") == F.lit(partition))


def _rows_of(*kinds: Visibility) -> Column:
    return F.sum(F.when(F.col(VISIBILITY).isin(*kinds), F.col("rows")).otherwise(0))


def _windows(read: OffsetRange, counts: dict[int, tuple[int, int]], bits: int) -> list[Window]:
    return [
        Window(max(read.start, number << bits), min(read.end, (number + 1) << bits), *shares, 0)
        for number, shares in sorted(counts.items())
    ]
