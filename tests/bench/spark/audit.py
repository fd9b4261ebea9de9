"""What a full run of the audits costs, against a plain read_committed count of the same topic.

The topic of native transactions of the case `spark_filter`: every round counts it under Kafka's own
read_committed and audits it, in one session and in turn. The plain count is what Spark's Kafka
source gives an application that has tuned its options as we have; `direct` is one by the newer
interface that we read by. Offsets, outcomes, index, open transactions and batches are read again
for each audit.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.connectors.spark.source import options_of, read_ranges
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.jobs.audits.plan import AuditPlan
from stilltide.pipeline.jobs.audits.report import Verdict
from stilltide.pipeline.jobs.audits.run import run_audit
from stilltide.schemas.values import OffsetRange
from tests.bench.harness import report, rotated
from tests.bench.spark.spark_filter_topics import (
    NATIVE,
    NATIVE_ABORTED,
    PER_TRANSACTION,
    RECORDS,
    create_topics,
    produce_native,
    ranges_of,
)

ROUNDS = 3
TIMES_MAX = 3.0
"""What the audit may cost, in plain counts."""


class Stopwatch:
    """Progress that remembers how long each step took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._step = ""
        self._began = time.perf_counter()

    def step(self, text: str) -> None:
        """Ends the step before."""
        now = time.perf_counter()
        self.seconds[self._step] = now - self._began
        self._step, self._began = text.split(" ", maxsplit=1)[0], now

    def note(self, text: str) -> None:
        """Nothing."""

    def share(self, done: float) -> None:
        """Nothing."""


def timed_count(frame: DataFrame) -> float:
    """Seconds of a count."""
    began = time.perf_counter()
    found = frame.count()
    assert found == RECORDS - NATIVE_ABORTED * PER_TRANSACTION, found
    return time.perf_counter() - began


def audit(bootstrap: str) -> float:
    """Seconds of the audit."""
    watch, began = Stopwatch(), time.perf_counter()
    result = run_audit(bootstrap, AuditPlan([NATIVE]), progress=watch)
    seconds = time.perf_counter() - began
    assert result.verdict is Verdict.VALID, result.to_dict()
    assert sum(one.batches.aborts for one in result.partitions if one.batches) == NATIVE_ABORTED
    watch.step("")
    steps = ", ".join(f"{name} {value:.2f}" for name, value in watch.seconds.items() if name)
    say(f"audit: {steps}")
    return seconds


def measure(spark: SparkSession, bootstrap: str, ranges: list[OffsetRange]) -> dict[str, Any]:
    """The row `native`."""
    options = options_of(bootstrap, ranges, committed=True, headers=False)
    works: dict[str, Callable[[], float]] = {
        "plain": lambda: timed_count(spark.read.format("kafka").options(**options).load()),
        "direct": lambda: timed_count(read_ranges(spark, bootstrap, ranges, headers=False)),
        "audit": lambda: audit(bootstrap),
    }
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(-1, ROUNDS):
        for name in rotated(list(works), number):
            found = works[name]()
            if number >= 0:  # the first round warms up
                seconds[name].append(found)
            say(f"audit: {name} {found:.2f} s")
    wall = {name: median(found) for name, found in seconds.items()}
    return {
        "setting": "native",
        "ours": wall["audit"],
        "baseline": wall["plain"],
        "ratio": wall["audit"] / wall["plain"],
        "direct": wall["direct"],
        "unit": "s",
    }


async def run() -> None:
    """Measures, prints and writes the case."""
    with TemporaryDirectory() as path, LocalCluster("a", Path(path)) as cluster:
        connector = KafkaConnector(KafkaConfig(cluster.bootstrap))
        await create_topics(connector)
        say(f"audit: writing {RECORDS} records in native transactions")
        await produce_native(connector, cluster.bootstrap)
        ranges = await ranges_of(connector, NATIVE)
        options = SparkOptions(jars=spark_jars(), master="local[2]")
        with spark_session(options) as spark:
            row = measure(spark, cluster.bootstrap, ranges)
    report(
        "audit",
        [row],
        records=RECORDS,
        aborted_transactions=NATIVE_ABORTED,
        ratio_max=TIMES_MAX,
    )
