"""Tables on a real broker: each committed record once, whatever comes between batches."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stilltide.connectors.errors import FatalError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.spark.read_committed import committed
from stilltide.connectors.spark.recipes import with_json
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.drivers.snapshots.outcomes import gather_evidence
from stilltide.pipeline.errors import AbortedIndexError, ConfigError, TableError
from stilltide.pipeline.jobs.blocking import run_blocking
from stilltide.pipeline.jobs.outcomes import decisions_of
from stilltide.pipeline.jobs.read_committed import committed_once
from stilltide.pipeline.jobs.tables.append import Values, append_committed
from stilltide.pipeline.jobs.tables.batches import committed_batches
from stilltide.pipeline.jobs.tables.target import read_parquet_table
from stilltide.schemas.values import Offset, TopicPartition, TxnId
from tests.support.native.topics import index_topics
from tests.support.native.writer import NativeWriter
from tests.support.processes.local import write_values
from tests.support.spark.histories import MixedHistory
from tests.support.spark.tables import audited, held
from tests.support.spark.topics import HandWriter, create_topics

PARTITIONS = 2


async def test_batches_hold_what_an_audit_sees(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """K1, K3: of both kinds of transaction in one topic; a repeated batch is stored once."""
    create_topics(bootstrap, {topic_name: PARTITIONS})
    history = MixedHistory(bootstrap, topic_name, PARTITIONS, seed=3)
    place, by_index = tmp_path / "table", tmp_path / "by_index"

    def append(records_max: int) -> int:
        return append_committed(
            spark, bootstrap, [topic_name], f"parquet:{place}", records_max=records_max
        )

    for _ in range(2):
        history.act(12)
        append(7)
    stored = sorted(place.glob("batch=*"))
    assert len(stored) > 2
    shutil.rmtree(stored[-1])  # as if the crash had come before the rename
    (place / "_staging-1").mkdir()
    (place / "_staging-1" / "part-0.parquet").write_text("what a crash leaves")
    history.end()
    assert append(7)
    assert append(7) == 0
    expected = audited(bootstrap, [topic_name])
    assert held(spark.read.parquet(str(place))) == expected
    assert not list(place.glob("_staging*"))
    await index_topics(bootstrap, topic_name)
    append_committed(
        spark,
        bootstrap,
        [topic_name],
        f"manifest:{by_index}",
        records_max=11,
        by_index=True,
        headers=True,
    )
    files = [str(path) for path in by_index.glob("data/*/*.parquet")]
    stored = spark.read.parquet(*files)
    assert held(stored) == expected
    assert "headers" in stored.columns


def test_the_fields_of_values_are_columns(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """Every record is there, also one whose value is faulty; what takes a column is refused."""
    create_topics(bootstrap, {topic_name: 1})
    write_values(bootstrap, topic_name, [b'{"order": "a", "cents": 7}', b"no JSON"])
    place = f"parquet:{tmp_path}/table"

    def append(values: Values) -> int:
        return append_committed(spark, bootstrap, [topic_name], place, values=values)

    with pytest.raises(ConfigError, match="takes the column offset away"):
        append(lambda frame: frame.drop("offset"))
    with pytest.raises(FatalError, match="`schema` is 'order'"):
        append(partial(with_json, schema="order"))
    assert append(partial(with_json, schema="order string, cents bigint")) == 1
    rows = read_parquet_table(spark, place).orderBy("offset").collect()
    assert [(row.data and row.data.cents, row.faulty) for row in rows] == [(7, False), (None, True)]


async def test_by_index_a_batch_ends_where_the_index_ends(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """F4: what is not indexed yet waits; without an index of the beginning nothing is stored."""
    create_topics(bootstrap, {topic_name: 1})
    native = NativeWriter(bootstrap, topic_name)

    def append() -> list[int]:
        append_committed(spark, bootstrap, [topic_name], f"parquet:{tmp_path}", by_index=True)
        rows = spark.read.parquet(str(tmp_path)).select("offset").collect()
        return sorted(row["offset"] for row in rows)

    native.transaction(0, 3, commit=False)
    first = native.transaction(0, 2, commit=True)
    with pytest.raises(AbortedIndexError, match="not indexed"):
        append()
    await index_topics(bootstrap, topic_name)
    assert append() == first
    later = native.transaction(0, 1, commit=True)
    assert append() == first
    await index_topics(bootstrap, topic_name)
    assert append() == [*first, *later]


def test_a_partition_ends_at_its_first_undecided_record(
    bootstrap: str, topic_name: str, spark: SparkSession
):
    """K1: its transaction is still open; another partition goes on, and so does this one later."""
    create_topics(bootstrap, {topic_name: 2})
    writer, txn = HandWriter(bootstrap, topic_name), TxnId(5, 1)
    writer.records(0, 2)
    written = writer.of_txn(txn, 0, 2)
    writer.records(0, 1)
    writer.records(1, 3)
    here, there = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    (batch,) = committed_batches(spark, bootstrap, [topic_name])
    assert batch.progress.positions == {here: 2, there: 3}
    assert batch.frame.count() == 5
    assert list(committed_batches(spark, bootstrap, [topic_name], batch.progress)) == []
    writer.abort(txn, 0)
    (after,) = committed_batches(spark, bootstrap, [topic_name], batch.progress)
    assert [tuple(one) for one in after.bounds] == [(here, written.offsets[0], 5)]
    assert [row["offset"] for row in after.frame.collect()] == [4]
    assert after.progress.number == 2


def test_it_stops_where_it_would_lose_or_mix(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """K4: progress of other topics, of a topic made again, overtaken, damaged; nothing changes."""

    def append(*topics: str) -> int:
        return append_committed(spark, bootstrap, topics or [topic_name], f"parquet:{tmp_path}")

    data, other = TopicPartition(topic_name, 0), f"{topic_name}-other"
    create_topics(bootstrap, {topic_name: 1, other: 1})
    writer = HandWriter(bootstrap, topic_name)
    writer.records(0, 3)
    assert append() == 1
    with pytest.raises(TableError, match="other topics"):
        append(other)
    with pytest.raises(TableError, match="other topics"):
        append(topic_name, other)
    writer.records(0, 3)
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    run_blocking(admin.delete_records({data: Offset(5)}))
    with pytest.raises(TableError, match="records from 3 on were deleted"):
        append()
    progress = tmp_path / "batch=0000000001" / "_progress.json"
    told = progress.read_text()
    progress.write_text('{"version": 2}')
    with pytest.raises(TableError, match="does not hold the progress"):
        append()
    progress.write_text(told.replace('": 3', '": 7'))
    with pytest.raises(TableError, match="below what the table holds"):
        append()
    (found,) = run_blocking(admin.describe_topics([topic_name])).values()
    progress.write_text(told.replace(found.topic_id.hex(), bytes(16).hex()))
    with pytest.raises(TableError, match="another topic of this name"):
        append()
    run_blocking(admin.close())
    assert [path.name for path in tmp_path.glob("batch=*")] == ["batch=0000000001"]


def test_a_place_that_cannot_be_written_to(
    bootstrap: str, topic_name: str, spark: SparkSession, tmp_path: Path
):
    """A typed error names the table, not a stack of Java."""
    create_topics(bootstrap, {topic_name: 1})
    HandWriter(bootstrap, topic_name).records(0, 1)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TableError, match="cannot write to the table"):
        append_committed(spark, bootstrap, [topic_name], f"parquet:{tmp_path}/file/table")


def test_records_of_a_topic_are_the_same_when_outcomes_are_broadcast_once(
    bootstrap: str, topic_name: str, spark: SparkSession
):
    """D4: each action reads the topic again, within the bounds that were fixed before."""
    create_topics(bootstrap, {topic_name: PARTITIONS})
    history = MixedHistory(bootstrap, topic_name, PARTITIONS, seed=5)
    history.act(30)
    history.end()
    evidence = run_blocking(gather_evidence(KafkaConnector(KafkaConfig(bootstrap)), [topic_name]))
    decisions = decisions_of(spark, evidence, audited=False)
    records = read_ranges(spark, bootstrap, evidence.data)
    expected = committed(records, decisions).sort("partition", "offset").collect()
    once = committed_once(records, decisions, once_min=0)
    history.act(30)
    for _ in range(2):
        assert once.count() == len(expected)
        assert once.sort("partition", "offset").collect() == expected
