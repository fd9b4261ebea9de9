"""Batches of Spark that are not as others: of a query without its checkpoint, or without a row.

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


def test_a_query_without_its_checkpoint_passes_over_no_batch(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """The query ends with an error that names the cause; a directory of its own takes its batch."""
    create_topics(bootstrap, {topic_name: 1})
    source, checkpoint = tmp_path / "source", tmp_path / "checkpoint"

    def add(*values: str) -> None:
        frame = spark.createDataFrame([(value,) for value in values], "value string")
        frame.coalesce(1).write.mode("append").parquet(str(source))

    def into(progress: str) -> Each:
        def each(batch: DataFrame, number: int) -> None:
            place = str(tmp_path / progress)
            write(batch, bootstrap, topic=topic_name, progress=place, batch_id=number)

        return each

    def visible() -> list[str]:
        frame = read_committed(spark, bootstrap, [topic_name])
        return sorted(
            row["value"] for row in frame.select(F.decode("value", "UTF-8")).toDF("value").collect()
        )

    add("of the first query")
    run_query(spark, source, checkpoint, into("progress"))
    shutil.rmtree(checkpoint)
    shutil.rmtree(source)
    add("of the second query")
    with pytest.raises(
        StreamingQueryException, match="another streaming query has written a batch"
    ):
        run_query(spark, source, checkpoint, into("progress"))
    assert visible() == ["of the first query"]
    run_query(spark, source, checkpoint, into("progress-2"))
    assert visible() == ["of the first query", "of the second query"]


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
