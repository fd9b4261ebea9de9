"""Rule K6: the source of bounds, asked as Spark asks it, before and since PySpark 4.2."""

import json
import pickle
from pathlib import Path

import pytest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.pipeline.errors import TableError
from stilltide.pipeline.jobs.streams.source import (
    BEGIN,
    BoundsReader,
    SourceOptions,
    last_offset,
    offset_of,
)
from stilltide.pipeline.jobs.tables.files import LocalFiles
from stilltide.schemas.values import TxnId
from tests.support.spark.topics import HandWriter, create_topics

RECORDS_MAX = 4


def reader_of(bootstrap: str, topic: str, begun: dict[str, str] | None = None) -> BoundsReader:
    """A reader of a query that has begun the batch that ends there."""
    at = BEGIN if begun is None else offset_of(begun)
    options = SourceOptions(KafkaConfig(bootstrap), [topic], RECORDS_MAX, False, at)
    return BoundsReader(options.to_dict())


def rows(reader: BoundsReader, start: dict[str, str], end: dict[str, str]) -> list[object]:
    """What the tasks of a batch return, in another process."""
    tasks = reader.partitions(start, end)
    return [row for task in tasks for row in pickle.loads(pickle.dumps(reader)).read(task)]  # noqa: S301 - our own


def test_spark_that_says_nothing_gets_batch_after_batch(bootstrap: str, topic_name: str):
    """Before 4.2: the latest offset is asked for first; a batch that is repeated is the same."""
    create_topics(bootstrap, {topic_name: 1})
    writer, txn = HandWriter(bootstrap, topic_name), TxnId(6, 1)
    writer.records(0, 6)
    waiting = writer.of_txn(txn, 0, 1)
    reader = reader_of(bootstrap, topic_name)
    first = reader.latestOffset()
    begin = reader.initialOffset()
    assert rows(reader, begin, first) == [(topic_name, 0, 0, 4)]
    second = reader.latestOffset()
    reader.stop()
    restarted = reader_of(bootstrap, topic_name, second)
    assert rows(restarted, first, second) == [(topic_name, 0, 4, 6)]
    assert restarted.latestOffset() == second, "the transaction is open"
    assert rows(restarted, second, second) == []
    writer.commit(txn, 0, waiting)
    third = restarted.latestOffset()
    assert rows(restarted, second, third) == [(topic_name, 0, 6, 7)]
    with pytest.raises(TableError, match="does not follow"):
        restarted.partitions(first, third)
    restarted.stop()


def test_available_now_ends_where_it_began(bootstrap: str, topic_name: str):
    """Since 4.2: Spark says where the query stands; what comes later is not read."""
    create_topics(bootstrap, {topic_name: 1})
    writer = HandWriter(bootstrap, topic_name)
    writer.records(0, 6)
    reader = reader_of(bootstrap, topic_name)
    reader.prepareForTriggerAvailableNow()
    writer.records(0, 5)
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, None)) != at:
        found += rows(reader, at, end)
        at = end
    reader.stop()
    assert found == [(topic_name, 0, 0, 4), (topic_name, 0, 4, 6)]


def test_a_checkpoint_is_read_from_its_last_batch(tmp_path: Path):
    """The last line of the last file; a damaged one is refused."""
    files = LocalFiles(tmp_path)
    assert last_offset(files) == BEGIN
    lines = ["v1", "{}", json.dumps(BEGIN._replace(reads=[]).to_dict())]
    for number in (9, 10):
        files.create(f"offsets/{number}", "\n".join(lines))
    assert last_offset(files) == BEGIN._replace(reads=[])
    files.create("offsets/11", "v1")
    with pytest.raises(TableError, match="cannot be read"):
        last_offset(files)
