"""F3: ranges of offsets decide, whatever their lengths, partitions and topics."""

import random
from array import array
from collections.abc import Iterable

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.spark.read_committed import RangeColumns, without_aborted
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

END = 1 << 18


def columns(ranges: Iterable[tuple[int, int]]) -> RangeColumns:
    """Of ranges `[first, end)`."""
    pairs = list(ranges)
    return RangeColumns(
        array("q", [first for first, _ in pairs]), array("q", [end for _, end in pairs])
    )


def drawn(seed: int, lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Disjoint ranges of such lengths, with gaps between, some of none."""
    draw, end, found = random.Random(seed), 0, list[tuple[int, int]]()
    while True:
        first = end + draw.choice((0, 1, 5, 300, 5000))
        end = first + draw.choice(lengths)
        if end > END:
            return found
        found.append((first, end))


def test_exactly_the_records_outside_of_ranges_are_kept(spark: SparkSession):
    """Short and long ranges, several topics and partitions, and one without any."""
    places = [TopicPartition(*place) for place in (("a", 0), ("a", 2), ("b", 0), ("b", 1))]
    ranges = {
        places[0]: drawn(1, (1, 2, 255, 256, 257)),
        places[1]: drawn(2, (1, 4095, 4096, 70_000)),
        places[2]: [(0, END)],
    }
    reads = [OffsetRange(place, Offset(0), EndOffset(END)) for place in places]
    records = spark.createDataFrame(
        [tuple(place) for place in places], "topic string, partition int"
    )
    records = records.crossJoin(spark.range(0, END).withColumnRenamed("id", "offset"))
    kept = without_aborted(records, reads, {data: columns(it) for data, it in ranges.items()})
    assert kept.columns == records.columns
    total = F.count("*")
    found = {
        (row[0], row[1]): row[2] for row in kept.groupBy("topic", "partition").agg(total).collect()
    }
    expected = {
        place: END - sum(end - first for first, end in ranges.get(place, [])) for place in places
    }
    assert found == {place: count for place, count in expected.items() if count}
    for place, one in ranges.items():
        edges = sorted({edge for pair in one[:200] for edge in (pair[0] - 1, *pair, pair[1] - 1)})
        here = kept.filter(
            (F.col("topic") == place.topic) & (F.col("partition") == place.partition)
        )
        there = {
            row[0] for row in here.filter(F.col("offset").isin(edges)).select("offset").collect()
        }
        within = {edge for edge in edges if any(first <= edge < end for first, end in one)}
        assert there == {edge for edge in edges if 0 <= edge < END} - within


def test_a_range_beyond_what_is_read_costs_nothing(spark: SparkSession):
    """One that would be entered a million times otherwise; nothing is left to join with."""
    data = TopicPartition("a", 0)
    records = spark.createDataFrame([("a", 0, 5)], "topic string, partition int, offset bigint")
    reads = [OffsetRange(data, Offset(5), EndOffset(6))]
    far = columns([(0, 5), (6, 1 << 62)])
    assert without_aborted(records, reads, {data: far}) is records
    near = columns([(0, 1 << 62)])
    assert without_aborted(records, reads, {data: near}).count() == 0
