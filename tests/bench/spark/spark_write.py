"""What writing exactly once costs, against Spark's plain Kafka sink.

Every round writes the same frame of records of 100 bytes into topics of their own, in one session
and in turn: by Spark's sink, by `write`, and by `write` beside another writer, so that the records
have to be read to be counted. `RECORDS=5000000` sets the size, `ROUNDS=1` how often each way is
measured.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread
from uuid import uuid4

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.connectors.local.jars import spark_jars
from stilltide.connectors.spark.session import SparkOptions, spark_session
from stilltide.pipeline.cli.common.output import say
from stilltide.pipeline.jobs.write import write
from tests.bench.harness import report, rotated, size
from tests.support.processes.worker_process import running_worker
from tests.support.spark.topics import create_topics

RECORDS = size("RECORDS", 1_000_000)
ROUNDS = size("ROUNDS", 3)
PARTITIONS, VALUE_BYTES, TIMES_MAX = 3, 100, 1.5


class Writers:
    """The ways of a frame into a topic."""

    def __init__(self, spark: SparkSession, bootstrap: str, scratch: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._scratch = scratch

    def seconds(self, way: Callable[[DataFrame, str], None]) -> float:
        """How long a way takes, into a topic of its own."""
        topic = f"records-{uuid4().hex[:8]}"
        create_topics(self._bootstrap, {topic: PARTITIONS})
        number = F.col("id").cast("string")
        value = F.rpad(number, VALUE_BYTES, "x").cast("binary")
        frame = self._spark.range(0, RECORDS, 1, 4).select(
            number.alias("key"), value.alias("value")
        )
        began = time.perf_counter()
        way(frame, topic)
        return time.perf_counter() - began

    def plain(self, frame: DataFrame, topic: str) -> None:
        """Spark's sink."""
        writer = frame.write.format("kafka").option("topic", topic)
        writer.option("kafka.bootstrap.servers", self._bootstrap).save()

    def quiet(self, frame: DataFrame, topic: str) -> None:
        """Stilltide, as the only writer."""
        place = str(self._scratch / topic)
        assert write(frame, self._bootstrap, topic=topic, progress=place, timeout_s=600)

    def beside(self, frame: DataFrame, topic: str) -> None:
        """Stilltide, beside a writer of a record every tenth of a second."""
        ended = Event()

        def write_others() -> None:
            producer = Producer({"bootstrap.servers": self._bootstrap})
            while not ended.wait(0.1):
                producer.produce(topic, b"of another writer")
                producer.flush()

        thread = Thread(target=write_others)
        thread.start()
        try:
            self.quiet(frame, topic)
        finally:
            ended.set()
            thread.join()


async def run() -> None:
    """Measures, prints and writes the case."""
    with TemporaryDirectory() as path, LocalCluster("a", Path(path)) as cluster:
        log_path = Path(path) / "worker.log"
        options = SparkOptions(jars=spark_jars(), master="local[2]")
        with running_worker(cluster.bootstrap, log_path), spark_session(options) as spark:
            writers = Writers(spark, cluster.bootstrap, Path(path) / "progress")
            ways = {"plain": writers.plain, "quiet": writers.quiet, "beside": writers.beside}
            took: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(ROUNDS + 1):
                for name in rotated(list(ways), number):
                    wall = writers.seconds(ways[name])
                    say(f"spark_write: {name} {wall:.2f} s")
                    if number:  # not the first, in which the JVM warms up
                        took[name].append(wall)
    plain = median(took["plain"])
    rows = [
        {
            "setting": name,
            "ours": median(took[name]),
            "baseline": plain,
            "ratio": median(took[name]) / plain,
            "unit": "s",
        }
        for name in ("quiet", "beside")
    ]
    report("spark_write", rows, records=RECORDS, times_max=TIMES_MAX)
