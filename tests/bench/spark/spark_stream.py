"""What a stream and a table of committed records cost, against Spark's own read_committed stream.

The topic of coordinated transactions of the case `spark_filter`, with a fresh snapshot: every round
moves the whole topic into Parquet, in one session and in turn: by Spark's Kafka source in a
streaming query (which hides no coordinated transaction), by `stream`, and by `append_committed`.
Processor time is that of all processes: this one, the JVM, and Spark's Python processes.

Besides: an idle look at a topic with a million aborted transactions, and the time from a marker to
the table at a trigger of two seconds. `RECORDS=5000000` sets the size, `ROUNDS=1` how often each
way is measured.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.ports.readers import NewRecord
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.core.snapshots.buffer import DataPosition, TransactionBuffer
from stilltide.pipeline.jobs.streams.stream import stream
from stilltide.pipeline.jobs.tables.append import Appender, Appending, append_committed
from stilltide.pipeline.jobs.tables.batches import reading_batches
from stilltide.pipeline.jobs.tables.target import opened_table, parse_target
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.tables.progress import NOTHING
from stilltide.schemas.topics import TXN_SNAPSHOTS, TopicSpec, system_partition
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.bench.harness import cpu_s, report, rotated, size
from tests.bench.spark import spark_filter_topics as topics
from tests.bench.spark.spark_filter_topics import COORDINATED
from tests.support.spark.topics import HandWriter

RECORDS = size("RECORDS", 1_000_000)
ROUNDS = size("ROUNDS", 3)
ABORTED = size("ABORTED", 1_000_000)
IDLE, LATE = "idle", "late"
TRANSACTIONS, TRIGGER_S = 15, 2.0
CPU_TIMES_MAX, WALL_TIMES_MAX, IDLE_S_MAX, P50_S_MAX = 1.3, 1.6, 0.5, 5.0


def tree_cpu_s(root: int) -> float:
    """Processor time of a process and everything below it, also of what has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile: its parent counts it
        proc = Path(f"/proc/{root}")
        fields = (proc / "stat").read_text().rsplit(")", 1)[1].split()
        own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        listed = (path.read_text().split() for path in (proc / "task").glob("*/children"))
        return own + sum(tree_cpu_s(int(word)) for words in listed for word in words)
    return 0.0


class Movers:
    """The ways of a topic into Parquet."""

    def __init__(self, spark: SparkSession, bootstrap: str, scratch: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._scratch = scratch

    def run(self, work: Callable[[Path], None]) -> tuple[float, float, int]:
        """Seconds of the clock and of processors, and the count of records."""
        place = self._scratch / "moved"
        shutil.rmtree(place, ignore_errors=True)
        began, cpu = time.perf_counter(), self._cpu_s()
        work(place)
        took = time.perf_counter() - began, self._cpu_s() - cpu
        return *took, self._spark.read.parquet(str(place / "table")).count()

    def _cpu_s(self) -> float:
        pid: int = self._spark._jvm.java.lang.ProcessHandle.current().pid()
        return cpu_s(os.getpid()) + tree_cpu_s(pid)

    def baseline(self, place: Path) -> None:
        """Spark's own source."""
        records = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("kafka.isolation.level", "read_committed")
            .option("kafka.max.poll.records", "50000")
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("subscribe", COORDINATED)
            .load()
        )
        query = (
            records.writeStream.foreachBatch(self._stored(place))
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def ours(self, place: Path) -> None:
        """A streaming query."""
        query = stream(
            self._spark,
            self._bootstrap,
            [COORDINATED],
            self._stored(place),
            checkpoint=str(place / "checkpoint"),
            available_now=True,
        )
        query.awaitTermination()

    def table(self, place: Path) -> None:
        """A table, in one batch too."""
        to = f"parquet:{place}/table"
        append_committed(self._spark, self._bootstrap, [COORDINATED], to, records_max=2 * RECORDS)

    def _stored(self, place: Path) -> Callable[[DataFrame, int], None]:
        def stored(frame: DataFrame, number: int) -> None:
            frame.write.parquet(str(place / "table" / f"batch={number}"))

        return stored


def measure(spark: SparkSession, bootstrap: str, scratch: Path) -> list[dict[str, Any]]:
    """The rows `stream` and `table`."""
    movers = Movers(spark, bootstrap, scratch)
    works = {"spark": movers.baseline, "stream": movers.ours, "table": movers.table}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    visible = RECORDS - RECORDS // topics.ABORTED_EVERY
    for number in range(ROUNDS + 1):
        for name in rotated(list(works), number):
            wall, cpu, found = movers.run(works[name])
            assert found == (RECORDS if name == "spark" else visible), (name, found)
            say(f"spark_stream: {name} {wall:.2f} s, {cpu:.2f} s of processors")
            if number:  # not the first, in which the JVM warms up
                took[name].append((wall, cpu))
    wall, cpu = ({name: median(it[at] for it in took[name]) for name in works} for at in (0, 1))
    return [
        {
            "setting": name,
            "ours": wall[name],
            "baseline": wall["spark"],
            "ratio": wall[name] / wall["spark"],
            "cpu_ratio": cpu[name] / cpu["spark"],
            "unit": "s",
        }
        for name in ("stream", "table")
    ]


def row(setting: str, middle: float, most: float) -> dict[str, Any]:
    """A row without a baseline."""
    return {
        "setting": setting,
        "ours": middle,
        "baseline": None,
        "ratio": None,
        "cpu_ratio": None,
        "unit": f"s, at most {most:.2f}",
    }


async def write_idle(connector: KafkaConnector, bootstrap: str) -> None:
    """A topic of few records, and a snapshot of a million aborted transactions."""
    data = TopicPartition(IDLE, 0)
    admin = connector.admin()
    await admin.ensure_topics([TopicSpec(IDLE, 1), TopicSpec(LATE, 1)])
    HandWriter(bootstrap, IDLE).records(0, 10)
    topic_id = (await admin.describe_topics([IDLE]))[IDLE].topic_id
    await admin.close()
    end, start = EndOffset(10), EndOffset(0)
    buffer = TransactionBuffer(data, floors={}, part_bytes_max=topics.PART_BYTES_MAX)
    for number in range(ABORTED):
        txn = TxnId(number % topics.COORDINATORS, number)
        buffer.marker_read(Offset(number), Marker(data, txn, False, start, end, 0, topic_id))
    place = TopicPartition(TXN_SNAPSHOTS, system_partition(data, topics.SYSTEM_PARTITIONS))
    found = DataPosition(topic_id, start, end, end)
    writer = connector.transactional_writer("idle")
    await writer.fence()
    records = buffer.snapshot(found, [], {}, Offset(0))
    await writer.write([NewRecord(place, *record) for record in records])
    await writer.close()


def idle(spark: SparkSession, bootstrap: str) -> dict[str, Any]:
    """The row `idle`: looks that find nothing new."""
    with reading_batches(spark, bootstrap, [IDLE], NOTHING) as reader:
        reader.read_on()
        batch = reader.next_batch()
        assert batch is not None
        reader.stored(batch)
        looks: list[float] = []
        for _ in range(10):
            began = time.perf_counter()
            reader.read_on()
            assert reader.next_batch() is None
            looks.append(time.perf_counter() - began)
    return row("idle", median(looks), max(looks))


def latency(spark: SparkSession, bootstrap: str, scratch: Path) -> dict[str, Any]:
    """The row `latency`: from a marker to the table, at a trigger of two seconds."""
    writer, stored, ended = HandWriter(bootstrap, LATE), threading.Condition(), threading.Event()
    until = 0

    def follow() -> None:
        nonlocal until
        target = parse_target(f"parquet:{scratch}/late")
        what = Appending(bootstrap, [LATE])
        with opened_table(spark, target) as table, Appender(spark, table, what) as appender:
            while not ended.wait(TRIGGER_S):
                appender.append()
                with stored:
                    assert appender.reader is not None
                    until = appender.reader.progress.positions.get(TopicPartition(LATE, 0), 0)
                    stored.notify_all()

    thread = threading.Thread(target=follow)
    thread.start()
    took: list[float] = []
    try:
        for number in range(TRANSACTIONS):
            txn = TxnId(1, number)
            written = writer.of_txn(txn, 0, 10)
            writer.commit(txn, 0, written)
            began, end = time.perf_counter(), written.offsets[-1] + 1
            with stored:
                assert stored.wait_for(lambda end=end: until >= end, timeout=120)
            took.append(time.perf_counter() - began)
            ended.wait(0.37)  # not in step with the trigger
    finally:
        ended.set()
        thread.join()
    took = took[1:]  # not the first, in which the JVM warms up
    return row("latency", median(took), max(took))


async def run() -> None:
    """Measures, prints and writes the case."""
    topics.RECORDS = RECORDS
    with TemporaryDirectory() as path, LocalCluster("a", Path(path)) as cluster:
        bootstrap, connector = cluster.bootstrap, KafkaConnector(KafkaConfig(cluster.bootstrap))
        await topics.create_topics(connector)
        say(f"spark_stream: writing {RECORDS} records")
        topics.produce_coordinated(bootstrap)
        await topics.write_snapshots(connector)
        await write_idle(connector, bootstrap)
        options = SparkOptions(jars=spark_jars(), master="local[2]")
        with spark_session(options) as spark:
            scratch = Path(path) / "tables"
            rows = [
                *measure(spark, bootstrap, scratch),
                idle(spark, bootstrap),
                latency(spark, bootstrap, scratch),
            ]
    report(
        "spark_stream",
        rows,
        records=RECORDS,
        aborted_ids=ABORTED,
        cpu_times_max=CPU_TIMES_MAX,
        wall_times_max=WALL_TIMES_MAX,
        idle_s_max=IDLE_S_MAX,
        p50_s_max=P50_S_MAX,
    )
