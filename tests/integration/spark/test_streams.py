"""Streaming queries on a real broker: Spark's checkpoint, and the records that an audit sees."""

import json
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from stilltide.pipeline.errors import ConfigError, TableError
from stilltide.pipeline.jobs.streams.source import HAS_AVAILABLE_NOW
from stilltide.pipeline.jobs.streams.stream import stream
from tests.support.spark.histories import MixedHistory
from tests.support.spark.tables import audited, held
from tests.support.spark.topics import HandWriter, create_topics

PARTITIONS, WAIT_S = 2, 600


class Sink:
    """A table with a folder for each batch: the number is stored with the data."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.numbers: list[int] = []

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Stores a batch, replacing what a crash left of it."""
        self.numbers.append(number)
        frame.write.mode("overwrite").parquet(str(self.place / f"batch={number}"))


def test_a_query_goes_on_from_its_checkpoint(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """K6: both kinds of transaction, open ones at a stop; a repeated batch has the same records."""
    create_topics(bootstrap, {topic_name: PARTITIONS})
    history = MixedHistory(bootstrap, topic_name, PARTITIONS, seed=5)
    sink, checkpoint = Sink(tmp_path / "table"), tmp_path / "checkpoint"

    def run() -> None:
        query = stream(
            spark, bootstrap, [topic_name], sink, checkpoint=str(checkpoint), available_now=True
        )
        assert query.awaitTermination(WAIT_S)

    for _ in range(2):
        history.act(15)
        run()
    before = held(spark.read.parquet(str(sink.place)))
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "commits").glob(f"*{last}*"):
        path.unlink()  # as if the crash had come before the commit, with the data stored
    run()
    assert sink.numbers.count(last) == 2
    assert held(spark.read.parquet(str(sink.place))) == before
    history.end()
    run()
    assert held(spark.read.parquet(str(sink.place))) == audited(bootstrap, [topic_name])


def test_a_running_query_has_bounded_batches(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """K1: on every version of PySpark, also behind a restart; nothing is read twice."""
    create_topics(bootstrap, {topic_name: 1})
    writer, sink = HandWriter(bootstrap, topic_name), Sink(tmp_path / "table")
    for count in (9, 7):
        writer.records(0, count)
        begun = len(sink.numbers)
        query = stream(
            spark,
            bootstrap,
            [topic_name],
            sink,
            checkpoint=str(tmp_path / "checkpoint"),
            records_max=4,
            every_s=0.1,
        )
        query.processAllAvailable()
        query.stop()
        assert len(sink.numbers) - begun >= (count + 3) // 4
    assert sink.numbers == list(range(len(sink.numbers)))
    assert held(spark.read.parquet(str(sink.place))) == audited(bootstrap, [topic_name])


def test_available_now_ends_at_what_was_there(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """K1: in bounded batches where PySpark has them, else in one; what comes later is for later."""
    create_topics(bootstrap, {topic_name: 1})
    writer, sink = HandWriter(bootstrap, topic_name), Sink(tmp_path / "table")
    limit, batches_min = (4, 3) if HAS_AVAILABLE_NOW else (None, 1)

    def handle(frame: DataFrame, number: int) -> None:
        if number == 0:
            writer.records(0, 5)
        sink(frame, number)

    def run() -> list[int]:
        query = stream(
            spark,
            bootstrap,
            [topic_name],
            handle,
            checkpoint=str(tmp_path / "checkpoint"),
            available_now=True,
            records_max=limit,
        )
        assert query.awaitTermination(WAIT_S)
        stored = spark.read.parquet(str(sink.place)).select("offset").collect()
        return sorted(row["offset"] for row in stored)

    writer.records(0, 12)
    assert run() == list(range(12))
    assert len(sink.numbers) >= batches_min
    assert run() == list(range(17))


def test_a_checkpoint_of_something_else_is_refused(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """K4: before the query starts, with an error of a type; so are limits that Spark lacks."""

    def start(*topics: str, records_max: int | None = None) -> None:
        query = stream(
            spark,
            bootstrap,
            topics,
            Sink(tmp_path / "table"),
            checkpoint=str(checkpoint),
            available_now=True,
            records_max=records_max,
        )
        assert query.awaitTermination(WAIT_S)

    checkpoint, other = tmp_path / "checkpoint", f"{topic_name}-other"
    create_topics(bootstrap, {topic_name: 1, other: 1})
    HandWriter(bootstrap, topic_name).records(0, 3)
    start(topic_name)
    with pytest.raises(TableError, match="other topics"):
        start(other)
    if not HAS_AVAILABLE_NOW:
        with pytest.raises(ConfigError, match="no limit of batches"):
            start(topic_name, records_max=5)
    offsets = checkpoint / "offsets" / "0"
    lines = offsets.read_text().splitlines()
    offsets.write_text("\n".join([*lines[:-1], json.dumps({"orders": 5})]))
    with pytest.raises(TableError, match="of another source"):
        start(topic_name)
