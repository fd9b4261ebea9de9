"""`append_native_committed` on a real broker: each record once, whatever comes between batches."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.pipeline.jobs.native_batches import append_native_committed, native_batches
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.native.topics import index_topics, transactional, until_stable, write
from tests.support.spark.session import local_spark


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """The run's Spark session."""
    with local_spark() as session:
        yield session


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[LogAdmin]:
    """An admin of the shared broker."""
    made = KafkaConnector(KafkaConfig(bootstrap)).admin()
    yield made
    await made.close()


def offsets(spark: SparkSession, directory: Path) -> list[tuple[int, int]]:
    """What lies in the output: (partition, offset), in order."""
    frame = spark.read.parquet(str(directory)).select("partition", "offset")
    return sorted((row[0], row[1]) for row in frame.collect())


async def test_each_record_is_appended_once(
    bootstrap: str, topic_name: str, admin: LogAdmin, spark: SparkSession, tmp_path: Path
):
    """F4: as far as the index goes, batch by batch; a crash repeats nothing and loses nothing."""

    def append() -> int:
        return append_native_committed(spark, bootstrap, [topic_name], output, offsets_max=10)

    output = tmp_path / "output"
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    here, there = (TopicPartition(topic_name, number) for number in (0, 1))
    producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
    for data, count, commit in ((here, 6, False), (here, 3, True), (there, 2, True)):
        await asyncio.to_thread(write, producer, data, count, commit=commit)
    await until_stable(admin, here, 11)
    await until_stable(admin, there, 3)
    with pytest.raises(AbortedIndexError, match="not indexed"):
        append()
    await index_topics(bootstrap, topic_name)
    first = [(0, 7), (0, 8), (0, 9), (1, 0), (1, 1)]
    batches = list(native_batches(spark, bootstrap, [topic_name], offsets_max=10))
    assert [[tuple(read) for read in batch.reads] for batch in batches] == [
        [(here, 0, 5), (there, 0, 3)],
        [(here, 5, 11)],
    ]
    assert append() == 2
    assert offsets(spark, output) == first
    assert append() == 0

    await asyncio.to_thread(write, producer, here, 2, commit=True)
    await until_stable(admin, here, 14)
    assert append() == 0  # the index does not go there yet
    await index_topics(bootstrap, topic_name)
    staging = output / "_staging"
    staging.mkdir()
    (staging / "part-0.parquet").write_text("what a crash leaves behind")
    assert append() == 1
    whole = [(0, 7), (0, 8), (0, 9), (0, 11), (0, 12), (1, 0), (1, 1)]
    assert offsets(spark, output) == whole
    shutil.rmtree(output / "batch=0000000003")  # as if the crash had come before the rename
    assert offsets(spark, output) == first
    assert append() == 1
    assert offsets(spark, output) == whole


async def test_it_stops_where_it_would_lose_or_mix(
    bootstrap: str, topic_name: str, admin: LogAdmin, spark: SparkSession, tmp_path: Path
):
    """Progress that cannot be read, that retention has overtaken, or of a former topic (E8)."""

    def append() -> int:
        return append_native_committed(spark, bootstrap, [topic_name], tmp_path)

    async def fill(count: int, end: int) -> None:
        producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
        await asyncio.to_thread(write, producer, data, count, commit=True)
        await until_stable(admin, data, end)
        await index_topics(bootstrap, topic_name)

    data = TopicPartition(topic_name, 0)
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    await fill(2, 3)
    assert append() == 1
    await fill(2, 6)
    await admin.delete_records({data: 5})
    with pytest.raises(OffsetOutOfRangeError, match="records from 3 on were deleted"):
        append()
    progress = tmp_path / "batch=0000000001" / "_progress.json"
    told = progress.read_text()
    progress.write_text('{"version": 2}')
    with pytest.raises(FatalError, match="does not hold the progress"):
        append()
    (topic_id,) = [one.topic_id for one in (await admin.describe_topics([topic_name])).values()]
    progress.write_text(told.replace(topic_id.hex(), bytes(16).hex()))
    with pytest.raises(FatalError, match="created again"):
        append()
