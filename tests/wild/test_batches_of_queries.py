"""Batches of Spark that are not as others: of a query without its last checkpoint, without a row.

A user of another sink saw: a checkpoint was deleted, so Spark gave the batches of the new query the
numbers of the former one. The sink knew these numbers, passed the batches over, and the query ended
well. The records of the new query were nowhere. A user of a third one saw that a transaction could
not be committed if nothing was written between two checkpoints.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark reader knows

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.pipeline.jobs.write import write
from tests.support.processes.worker_process import running_worker
from tests.support.spark.topics import create_topics

Each = Callable[[DataFrame, int], None]


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker with a worker."""
    log_path = tmp_path_factory.mktemp("worker") / "worker.log"
    with running_worker(empty_kafka.bootstrap, log_path):
        yield empty_kafka.bootstrap


def run_query(spark: SparkSession, source: Path, checkpoint: Path, each: Each) -> None:
    """Runs a query over all files of a folder that the checkpoint does not know."""
    frames = spark.readStream.schema("value string").parquet(str(source))
    query = frames.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()


class Query:
    """A query that writes the values of a folder of files to a topic, each file once."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, place: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._topic = topic
        self._place = place
        self.source = place / "source"
        self.checkpoint = place / "checkpoint"

    def add(self, value: str) -> None:
        """Adds a file."""
        frame = self._spark.createDataFrame([(value,)], "value string")
        frame.coalesce(1).write.mode("append").parquet(str(self.source))

    def run(self, progress: str = "progress") -> None:
        """Runs it until all files are read that the checkpoint does not know."""

        def each(batch: DataFrame, number: int) -> None:
            place = str(self._place / progress)
            write(batch, self._bootstrap, topic=self._topic, progress=place, batch_id=number)

        run_query(self._spark, self.source, self.checkpoint, each)

    def visible(self) -> list[str]:
        """The values that readers see."""
        frame = read_committed(self._spark, self._bootstrap, [self._topic])
        return sorted(
            row["value"] for row in frame.select(F.decode("value", "UTF-8")).toDF("value").collect()
        )


@pytest.fixture
def query(bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path) -> Query:
    """A query without files."""
    create_topics(bootstrap, {topic_name: 1})
    return Query(spark, bootstrap, topic_name, tmp_path)


def test_a_query_without_its_checkpoint_passes_over_no_batch(query: Query):
    """The query ends with an error that names the cause; a directory of its own takes its batch."""
    query.add("of the first query")
    query.run()
    shutil.rmtree(query.checkpoint)
    shutil.rmtree(query.source)
    query.add("of the second query")
    with pytest.raises(StreamingQueryException, match="other records, in a batch of this number"):
        query.run()
    assert query.visible() == ["of the first query"]
    query.run("progress-2")
    assert query.visible() == ["of the first query", "of the second query"]


def test_a_query_whose_checkpoint_was_set_back_passes_over_no_batch(query: Query, tmp_path: Path):
    """Its next number stands for other records: an error, also where it is the last number."""
    query.add("first")
    query.run()
    shutil.copytree(query.checkpoint, tmp_path / "backup")
    query.add("second")
    query.run()
    shutil.rmtree(query.checkpoint)
    shutil.copytree(tmp_path / "backup", query.checkpoint)
    query.add("third")
    with pytest.raises(StreamingQueryException, match="other records, in a batch of this number"):
        query.run()
    assert query.visible() == ["first", "second"]
    query.run("progress-2")
    assert query.visible() == ["first", "second", "second", "third"]


def test_a_batch_that_spark_repeats_is_not_taken_for_another_one(query: Query):
    """Spark keeps what a batch holds before it is run, and has not noted its end."""
    query.add("first")
    query.run()
    for path in (query.checkpoint / "commits").glob("*0*"):
        path.unlink()
    query.add("second")
    query.run()
    assert query.visible() == ["first", "second"]


def test_a_batch_without_a_row_is_a_batch(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """Committed once, however Spark has found out that it is empty; the next batch is written."""
    create_topics(bootstrap, {topic_name: 2})
    some = spark.range(3).select(F.col("id").cast("string").alias("value"))
    frames = [
        some.filter("value < 0"),
        spark.createDataFrame([], "value string"),
        some.limit(0),
        spark.createDataFrame(spark.sparkContext.emptyRDD(), some.schema),
        some,
    ]
    for number, frame in enumerate(frames):
        for again in (False, True):
            place = str(tmp_path)
            written = write(frame, bootstrap, topic=topic_name, progress=place, batch_id=number)
            assert written is not again
    assert read_committed(spark, bootstrap, [topic_name]).count() == 3
