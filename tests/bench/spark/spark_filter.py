"""What Spark's read-committed filters cost, against a plain count of the same topic.

Each topic is written once; every round counts it plainly, under Kafka's own read_committed, and
filtered, in one session and in turn. What decides the records is read again for each count. The
plain count is what Spark's Kafka source gives an application that has tuned its options as we have;
`direct_s` is the same count by the interface that our filters read through, which alone is quicker.
`cpu_ratio` compares the processor time of Spark's process, for machines that do other things too.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import options_of, read_ranges
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.jobs.native_committed import read_native_committed
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.schemas.values import OffsetRange
from tests.bench.harness import cpu_s, report, rotated
from tests.bench.spark import spark_filter_topics as topics
from tests.bench.spark.spark_filter_topics import COORDINATED, NATIVE

ROUNDS = 5
RATIO_MIN = 0.667


class Took(NamedTuple):
    """One count, in seconds: of the clock, and of the processor."""

    wall_s: float
    cpu_s: float


def measure(
    spark: SparkSession,
    bootstrap: str,
    ranges: list[OffsetRange],
    filtered: Callable[[], int],
) -> dict[str, Any]:
    """One row; all three counts agree on what was committed, but for the coordinated ones."""

    def plain() -> int:
        options = options_of(bootstrap, ranges, committed=True, headers=False)
        return spark.read.format("kafka").options(**options).load().count()

    def direct() -> int:
        return read_ranges(spark, bootstrap, ranges, headers=False).count()

    topic = ranges[0].data.topic
    pid: int = spark._jvm.java.lang.ProcessHandle.current().pid()
    counts = {"plain": plain, "direct": direct, "filtered": filtered}
    aborted = topics.NATIVE_ABORTED * topics.PER_TRANSACTION
    expected = dict.fromkeys(counts, topics.RECORDS - aborted)
    if topic == COORDINATED:
        visible = topics.RECORDS - topics.RECORDS // topics.ABORTED_EVERY
        expected = {**dict.fromkeys(counts, topics.RECORDS), "filtered": visible}
    took: dict[str, list[Took]] = {name: [] for name in counts}
    for number in range(ROUNDS + 1):
        for name in rotated(list(counts), number):
            began, cpu = time.perf_counter(), cpu_s(pid)
            found = counts[name]()
            each = Took(time.perf_counter() - began, cpu_s(pid) - cpu)
            assert found == expected[name], (name, found, expected[name])
            say(f"spark_filter: {topic}, {name}: {each.wall_s:.2f} s, {each.cpu_s:.2f} s of cpu")
            if number:  # not the first, in which the JVM warms up
                took[name].append(each)
    wall, cpu = (
        {name: median(one[at] for one in took[name]) for name in counts} for at in range(2)
    )
    return {
        "setting": topic,
        "ours": wall["filtered"],
        "baseline": wall["plain"],
        "ratio": wall["plain"] / wall["filtered"],
        "cpu_ratio": cpu["plain"] / cpu["filtered"],
        "direct_s": wall["direct"],
        "direct_cpu_ratio": cpu["direct"] / cpu["filtered"],
        "unit": "s",
    }


async def run() -> None:
    """Measures, prints and writes the case."""
    with TemporaryDirectory() as path, LocalCluster("a", Path(path)) as cluster:
        bootstrap = cluster.bootstrap
        connector = KafkaConnector(KafkaConfig(bootstrap))
        await topics.create_topics(connector)
        say(f"spark_filter: writing {topics.RECORDS} records, twice")
        topics.produce_coordinated(bootstrap)
        await topics.write_snapshots(connector)
        await topics.produce_native(connector, bootstrap)
        ranges = {name: await topics.ranges_of(connector, name) for name in (COORDINATED, NATIVE)}
        options = SparkOptions(jars=spark_jars(), master="local[2]")
        with spark_session(options) as spark:

            def coordinated() -> int:
                return read_committed(spark, bootstrap, [COORDINATED]).count()

            def native() -> int:
                return read_native_committed(spark, bootstrap, [NATIVE], headers=False).count()

            rows = [
                measure(spark, bootstrap, ranges[COORDINATED], coordinated),
                measure(spark, bootstrap, ranges[NATIVE], native),
            ]
    report(
        "spark_filter",
        rows,
        records=topics.RECORDS,
        aborted_transactions={
            COORDINATED: topics.RECORDS // topics.PER_TRANSACTION // topics.ABORTED_EVERY,
            NATIVE: topics.NATIVE_ABORTED,
        },
        ratio_min=RATIO_MIN,
    )
