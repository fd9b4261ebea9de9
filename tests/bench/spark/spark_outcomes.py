"""What many outcomes cost Spark's read-committed filter: their table, and the first counts.

No broker: markers, aborted sets and records are made here. The table of outcomes is made in this
process, the join by Spark; `cpu_s` is the processor time of both. Counts of 1 000 000 records are
taken by a broadcast, once for the frame and each time in turn, and of ten times as many outcomes by
a shuffle; an audit judges the same.
`more_mib` is how much this process grows while the table is made; markers take memory, too.
"""

import gc
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.spark.read_committed import committed
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.snapshots.outcomes import TopicOutcomes
from stilltide.pipeline.jobs.audits.checks.coordinated import judge
from stilltide.pipeline.jobs.audits.checks.findings import by_transaction, committed_groups
from stilltide.pipeline.jobs.outcomes import OUTCOMES_ARROW_SCHEMA, decisions_of, outcome_table
from stilltide.pipeline.jobs.read_committed import committed_once
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.bench.harness import cpu_s, report, rss_mib, rss_peak_mib, size

TOPIC, TOPIC_ID = "orders", b"\1" * 16
MARKERS = size("MARKERS", 1_000_000)
ABORTED = size("ABORTED", 1_000_000)
ABORTED_MANY = size("ABORTED_MANY", 10_000_000)
RECORDS = 1_000_000
PARTITIONS, COORDINATORS = 10, 16
WIDE_PARTITIONS, WIDE_IDS = 10_000, 4
FEW = size("FEW", 100_000)
ROUNDS = size("ROUNDS", 2)
HEAP = "2g"
COUNTS = 3


def ranges(partitions: int) -> tuple[OffsetRange, ...]:
    """Ranges of that many partitions."""
    places = (TopicPartition(TOPIC, number) for number in range(partitions))
    return tuple(OffsetRange(place, Offset(0), EndOffset(RECORDS)) for place in places)


def aborted_sets(partitions: int, ids: range) -> TopicOutcomes:
    """Snapshots that hide these sequences of every coordinator on every partition."""
    held = dict.fromkeys(range(COORDINATORS), ids)
    end = SnapshotEnd(TOPIC_ID, EndOffset(RECORDS), EndOffset(0), 1, (), {}, {}, EndOffset(0), ())
    snapshots: dict[TopicPartition, Snapshot] = {}
    for read in ranges(partitions):
        aborted = AbortedSet({})
        aborted.update(held)
        snapshots[read.data] = Snapshot(end, aborted)
    return TopicOutcomes(ranges(partitions), {TOPIC: TOPIC_ID}, (), (), {}, snapshots)


def marked() -> TopicOutcomes:
    """Markers, two thirds of them of commits; each has bytes of its own, as if decoded."""
    found = tuple(
        Marker(
            TopicPartition(TOPIC, number % PARTITIONS),
            TxnId(number % COORDINATORS, number),
            number % 3 > 0,
            EndOffset(number),
            EndOffset(number + 10),
            10,
            bytes(bytearray(TOPIC_ID)),
        )
        for number in range(MARKERS)
    )
    return TopicOutcomes(ranges(PARTITIONS), {TOPIC: TOPIC_ID}, found, (), {}, {})


def table(setting: str, evidence: TopicOutcomes) -> dict[str, Any]:
    """The row of a table of outcomes."""
    gc.collect()
    pid = os.getpid()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    began, cpu, before = time.perf_counter(), time.process_time(), rss_mib(pid)
    made = outcome_table(evidence, evidence.data, OUTCOMES_ARROW_SCHEMA.names, audited=True)
    took = time.process_time() - cpu
    say(f"spark_outcomes: {setting}: {made.num_rows} rows, {took:.2f} s of cpu")
    return {
        "setting": setting,
        "rows": made.num_rows,
        "wall_s": time.perf_counter() - began,
        "cpu_s": took,
        "next_s": None,
        "next_cpu_s": None,
        "table_mib": made.nbytes / 2**20,
        "more_mib": rss_peak_mib(pid) - before,
    }


def coordinated(spark: SparkSession) -> DataFrame:
    """Records, in Spark's memory, of transactions with every second of the sequences hidden."""
    txn = f"unhex(concat(lpad(hex(id % {COORDINATORS}), 16, '0'), lpad(hex(id div 160), 16, '0')))"
    found = spark.range(RECORDS).selectExpr(
        f"'{TOPIC}' topic",
        f"cast(id % {PARTITIONS} as int) partition",
        "id offset",
        "cast('key' as binary) key",
        "cast(cast(id as string) as binary) value",
        f"array(named_struct('key', 'txn', 'value', {txn})) headers",
    )
    kept = found.persist()
    kept.count()
    return kept


class Timed:
    """Runs parts of a case, and knows what they took.

    Args:
        spark: the session.
    """

    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        self._pid: int = jvm.java.lang.ProcessHandle.current().pid()

    def __call__(self, act: Callable[[], Any]) -> tuple[float, float, Any]:
        """Seconds of the clock and of the processor, and the result."""
        began, cpu = time.perf_counter(), self._cpu_s()
        found = act()
        return time.perf_counter() - began, self._cpu_s() - cpu, found

    def _cpu_s(self) -> float:
        return time.process_time() + cpu_s(self._pid)


def many(ids: int) -> TopicOutcomes:
    """So many aborted ids."""
    return aborted_sets(PARTITIONS, range(0, 2 * ids // PARTITIONS // COORDINATORS, 2))


def counts(
    spark: SparkSession, setting: str, records: DataFrame, ids: int, filtered: Callable[..., Any]
) -> dict[str, Any]:
    """The row of a frame, made once and counted several times."""
    evidence, timed = many(ids), Timed(spark)
    made_s, made_cpu_s, frame = timed(
        lambda: filtered(records, decisions_of(spark, evidence, audited=False))
    )
    took: list[Sequence[Any]] = [timed(frame.count) for _ in range(COUNTS)]
    assert len({one[2] for one in took}) == 1
    say(f"spark_outcomes: {setting}: first {took[0][0]:.1f} s, then {took[-1][0]:.1f} s")
    return spark_row(
        setting,
        ids,
        (made_s + took[0][0], made_cpu_s + took[0][1]),
        (took[-1][0], took[-1][1]),
    )


def audited(spark: SparkSession, setting: str, records: DataFrame, ids: int) -> dict[str, Any]:
    """The row of the part of an audit that depends on outcomes."""
    evidence, timed = many(ids), Timed(spark)

    def audit() -> int:
        decisions = decisions_of(spark, evidence)
        groups = committed_groups(records, decisions, digest=False).persist()
        transactions = by_transaction(groups).persist()
        found = judge(transactions, decisions, evidence, 10)
        for frame in (transactions, groups):
            frame.unpersist()
        return sum(one.visible + one.hidden for one in found.partitions)

    wall_s, spent_s, found = timed(audit)
    assert found == RECORDS
    say(f"spark_outcomes: {setting}: {wall_s:.1f} s")
    return spark_row(setting, ids, (wall_s, spent_s), (None, None))


def spark_row(
    setting: str,
    ids: int,
    took: tuple[float, float],
    then: tuple[float | None, float | None],
) -> dict[str, Any]:
    """A row of Spark's work: clock and processor, the first time and afterwards."""
    return {
        "setting": setting,
        "rows": ids,
        "wall_s": took[0],
        "cpu_s": took[1],
        "next_s": then[0],
        "next_cpu_s": then[1],
        "table_mib": None,
        "more_mib": None,
    }


async def run() -> None:
    """Measures, prints and writes the case."""
    wide = aborted_sets(WIDE_PARTITIONS, range(WIDE_IDS))
    rows = [table(f"{WIDE_PARTITIONS} partitions of {COORDINATORS} coordinators", wide)]
    rows.append(table("markers", marked()))
    options = SparkOptions(master="local[2]", driver_memory=HEAP)
    with spark_session(options) as spark:
        records = coordinated(spark)
        ways = {"once": partial(committed_once, once_min=0), "each time": committed}
        for _, ids, (name, way) in product(range(ROUNDS), (ABORTED, FEW), ways.items()):
            rows.append(counts(spark, f"{ids} broadcast {name}", records, ids, way))
        rows.append(counts(spark, "aborted, shuffled", records, ABORTED_MANY, committed))
        rows.append(audited(spark, "audited, shuffled", records, ABORTED_MANY))
    report("spark_outcomes", rows, records=RECORDS, heap=HEAP)
