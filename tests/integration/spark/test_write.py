"""L9: a batch that Spark's own sink writes is visible exactly once, whatever comes between."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.errors import FatalError
from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.errors import BatchError, ConfigError
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.pipeline.jobs.write import write
from tests.support.looks import block_between_looks
from tests.support.processes.child import ROOT
from tests.support.processes.local import STILLTIDE
from tests.support.processes.worker_process import running_worker
from tests.support.spark.topics import HandWriter, create_topics
from tests.support.spark.write_program import POINTS

ROWS = 400


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker with a worker."""
    log_path = tmp_path_factory.mktemp("worker") / "worker.log"
    with running_worker(empty_kafka.bootstrap, log_path):
        yield empty_kafka.bootstrap


def frame_of(spark: SparkSession, first: int, until: int) -> DataFrame:
    """Rows of numbers."""
    text = F.col("id").cast("string")
    return spark.range(first, until).select(text.alias("key"), text.cast("binary").alias("value"))


def visible(spark: SparkSession, bootstrap: str, topic: str) -> list[int]:
    """The keys that a reader sees, as numbers in order."""
    frame = read_committed(spark, bootstrap, [topic])
    return sorted(int(bytes(row["key"])) for row in frame.select("key").collect())


def test_batches_are_written_once(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """In a quiet topic and beside another writer; a repeated batch is not written again."""
    create_topics(bootstrap, {topic_name: 3})
    other = HandWriter(bootstrap, topic_name)
    progress = str(tmp_path / "progress")

    def call(number: int, *, beside_others: bool = False) -> bool:
        first = number * ROWS
        frame = frame_of(spark, first, first + ROWS)
        if beside_others:
            frame = frame.withColumn("key", F.udf(waiting)("key"))
        return write(frame, bootstrap, topic=topic_name, progress=progress, batch_id=number)

    os.mkfifo(tmp_path / "others")
    place = str(tmp_path / "others")

    def waiting(key: str) -> str:
        if int(key) == ROWS:
            Path(place).read_bytes()  # ends when the others have written
        return key

    def write_others() -> None:
        with Path(place).open("wb"):
            other.records(0, 3)

    assert call(0)
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write_others)
        assert call(1, beside_others=True)
        writing.result()
    assert not call(1)
    frame = read_committed(spark, bootstrap, [topic_name])
    coordinated = frame.filter(F.col("txn").isNotNull())
    keys = sorted(int(bytes(row["key"])) for row in coordinated.collect())
    assert keys == list(range(2 * ROWS))
    create_topics(bootstrap, {f"{topic_name}-b": 1})
    with pytest.raises(BatchError, match="of another topic"):
        write(frame_of(spark, 0, 1), bootstrap, topic=f"{topic_name}-b", progress=progress)


def test_a_frame_is_refused_that_could_not_be_counted(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """A stream, no value, a header `txn`, a second frame in a directory without batches."""
    create_topics(bootstrap, {topic_name: 1})
    place = {"topic": topic_name, "progress": str(tmp_path)}
    good = frame_of(spark, 0, 2)
    with pytest.raises(FatalError, match="streaming query"):
        write(spark.readStream.format("rate").load(), bootstrap, **place)
    with pytest.raises(FatalError, match="no column `value`"):
        write(good.drop("value"), bootstrap, **place)
    with pytest.raises(FatalError, match="Stilltide's own"):
        write(good, bootstrap, options={"kafka.acks": "1"}, **place)
    with pytest.raises(ConfigError, match="batch_id"):
        write(good, bootstrap, batch_id=-1, **place)
    txn = F.array(F.struct(F.lit("txn").alias("key"), F.lit(b"").alias("value")))
    with pytest.raises(FatalError, match="header `txn`"):
        write(good.withColumn("headers", txn), bootstrap, **place)
    assert write(good, bootstrap, **place)
    with pytest.raises(BatchError, match="its batch already"):
        write(good, bootstrap, **place)
    assert visible(spark, bootstrap, topic_name) == [0, 1]


def test_a_stream_writes_each_of_its_batches_once(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """In `foreachBatch`; a batch that Spark repeats is passed over."""
    create_topics(bootstrap, {topic_name: 2})
    written: list[tuple[int, bool]] = []

    def each(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            progress = str(tmp_path / "progress")
            again = write(batch, bootstrap, topic=topic_name, progress=progress, batch_id=number)
            written.append((number, again))

    for number in range(2):
        frame_of(spark, number * 10, number * 10 + 10).write.mode("append").parquet(
            str(tmp_path / "source")
        )
        query = (
            spark.readStream.schema("key string, value binary")
            .parquet(str(tmp_path / "source"))
            .writeStream.foreachBatch(each)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    assert written == [(0, True), (0, False), (1, True), (1, False)]
    assert visible(spark, bootstrap, topic_name) == list(range(20))


def program(bootstrap: str, topic: str, progress: Path, *, kill: str = "", fail: str = "") -> str:
    """The last line that the program printed, behind those of its log; empty if it was killed."""
    module = "tests.support.spark.write_program"
    arguments = [bootstrap, topic, str(progress), str(ROWS), kill, fail]
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == (-9 if kill else 0), done.stderr
    return "" if kill else done.stdout.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("point", [f"{it}:{name}" for name in POINTS for it in ("before", "after")])
def test_a_driver_that_is_killed_writes_its_batch_once(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path, point: str
):
    """SIGKILL at each point; the next driver ends the batch, and it is visible once."""
    create_topics(bootstrap, {topic_name: 2})
    program(bootstrap, topic_name, tmp_path, kill=point)
    decided = any(
        json.loads(path.read_text())["commit"]
        for path in tmp_path.glob("batches/*/*.decision.json")
    )
    assert program(bootstrap, topic_name, tmp_path) == str(not decided)
    assert program(bootstrap, topic_name, tmp_path) == "False"
    until_decided(bootstrap)
    assert visible(spark, bootstrap, topic_name) == list(range(ROWS))


def until_decided(bootstrap: str) -> None:
    """Waits for the time-out of what a killed driver has left open: readers wait as well (D2)."""
    command = [STILLTIDE, "txn", "list", "--bootstrap-servers", bootstrap, "-o", "json"]
    while json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout):
        block_between_looks()


@pytest.mark.slow
def test_a_task_that_fails_after_it_has_written_is_written_again(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """Spark runs the task again, so rows stand twice; the second transaction holds them once."""
    create_topics(bootstrap, {topic_name: 2})
    assert program(bootstrap, topic_name, tmp_path / "p", fail=str(tmp_path / "failed")) == "True"
    assert (tmp_path / "failed").exists()
    all_rows = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    assert all_rows.option("subscribe", topic_name).load().count() > ROWS
    assert visible(spark, bootstrap, topic_name) == list(range(ROWS))
