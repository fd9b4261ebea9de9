"""`read_native_committed` on a real broker (F3, F4): Kafka's answer, by the index."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.readers import NewRecord
from stilltide.connectors.spark.source import read_ranges
from stilltide.pipeline.drivers.native.evidence import gather_native
from stilltide.pipeline.errors import AbortedIndexError
from stilltide.pipeline.jobs.native_committed import read_native_committed
from stilltide.pipeline.jobs.read_committed import read_committed
from stilltide.schemas.native.aborted_index import run_key
from stilltide.schemas.topics import ABORTED_INDEX, TopicSpec, system_partition
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId
from tests.support.native.topics import (
    INDEX_PARTITIONS,
    index_topics,
    transactional,
    until_stable,
    write,
)
from tests.support.spark.topics import HandWriter, create_topics

LONG = 5000
ENDS = {0: 26, 1: LONG + 6}
"""Of the partitions that `topic` writes."""


@pytest.fixture
async def admin(bootstrap: str) -> AsyncIterator[LogAdmin]:
    """An admin of the shared broker."""
    made = KafkaConnector(KafkaConfig(bootstrap)).admin()
    yield made
    await made.close()


@pytest.fixture
async def topic(bootstrap: str, topic_name: str, admin: LogAdmin) -> str:
    """Two partitions: transactions one by one and across each other; one of many batches."""
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    await asyncio.to_thread(_fill, bootstrap, topic_name)
    for number, end in ENDS.items():
        await until_stable(admin, TopicPartition(topic_name, number), end)
    return topic_name


def _fill(bootstrap: str, topic: str) -> None:
    first, second = (transactional(bootstrap, f"{topic}-{name}") for name in "ab")
    busy, long = (TopicPartition(topic, number) for number in (0, 1))
    for count, commit in ((3, False), (2, True), (1, False), (1, False)):
        write(first, busy, count, commit=commit)
    for producer in (first, second):
        producer.begin_transaction()
    for producer, header in ((first, "x"), (second, "y"), (first, "z"), (second, "x")) * 2:
        producer.produce(topic, b"across", partition=0, headers={header: b"1"})
        producer.flush(30)
    first.abort_transaction(30)
    second.commit_transaction(30)
    plain = Producer({"bootstrap.servers": bootstrap})
    for _ in range(2):
        plain.produce(topic, b"plain", partition=0)
        assert plain.flush(30) == 0
    write(first, busy, 2, commit=False)
    write(second, long, 2, commit=True)
    write(first, long, LONG, commit=False)
    write(second, long, 1, commit=True)


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    """What a frame holds, in order, but for the timestamps."""
    found = frame.select("topic", "partition", "offset", "key", "value", "headers").collect()
    return sorted((tuple(row) for row in found), key=str)


async def test_it_shows_what_kafka_shows(
    bootstrap: str, topic: str, admin: LogAdmin, spark: SparkSession
):
    """F3: across transactions, long ones, partitions and topics; whole and in explicit ranges."""
    other = f"{topic}-other"
    await admin.ensure_topics([TopicSpec(other, 1)])
    data = TopicPartition(other, 0)
    producer = await asyncio.to_thread(transactional, bootstrap, other)
    for commit in (True, False):
        await asyncio.to_thread(write, producer, data, 2, commit=commit)
    await until_stable(admin, data, 6)
    await index_topics(bootstrap, topic, other)

    whole = [
        *(OffsetRange(TopicPartition(topic, one), Offset(0), EndOffset(ENDS[one])) for one in ENDS),
        OffsetRange(data, Offset(0), EndOffset(6)),
    ]
    found = read_native_committed(spark, bootstrap, [topic, other])
    expected = rows(read_ranges(spark, bootstrap, whole))
    assert len(expected) == 2 + 4 + 2 + 2 + 1 + 2
    assert rows(found) == expected

    # An end inside an aborted transaction, and a start inside a long one.
    part = [
        OffsetRange(TopicPartition(topic, 0), Offset(4), EndOffset(15)),
        OffsetRange(TopicPartition(topic, 1), Offset(LONG // 2), EndOffset(LONG + 6)),
    ]
    found = read_native_committed(spark, bootstrap, [topic], ranges=part)
    expected = rows(read_ranges(spark, bootstrap, part))
    assert len(expected) > 3
    assert rows(found) == expected
    bare = read_native_committed(spark, bootstrap, [topic], ranges=part, headers=False)
    assert "headers" not in bare.columns
    assert bare.count() == len(expected)


async def test_what_is_not_covered_is_refused(
    bootstrap: str, topic: str, admin: LogAdmin, spark: SparkSession
):
    """F4: not indexed, behind, not whole, gone, or above the last stable offset."""
    busy = TopicPartition(topic, 0)
    connector = KafkaConnector(KafkaConfig(bootstrap))
    with pytest.raises(AbortedIndexError, match="not indexed"):
        read_native_committed(spark, bootstrap, [topic])
    await index_topics(bootstrap, topic)
    evidence = await gather_native(connector, [topic])
    assert {data.partition: end for data, end in evidence.covered_to.items()} == ENDS
    assert not evidence.problems

    producer = await asyncio.to_thread(transactional, bootstrap, topic)
    await asyncio.to_thread(write, producer, busy, 1, commit=False)
    await until_stable(admin, busy, ENDS[0] + 2)
    with pytest.raises(AbortedIndexError, match="does not cover") as caught:
        read_native_committed(spark, bootstrap, [topic])
    assert (caught.value.topic, caught.value.partition) == busy
    evidence = await gather_native(connector, [topic])
    assert list(evidence.problems) == [busy]
    assert {part.data.partition: part.end for part in evidence.covered()} == ENDS
    below = [OffsetRange(busy, Offset(0), EndOffset(ENDS[0]))]
    assert read_native_committed(spark, bootstrap, [topic], ranges=below).count() == 8

    above = [OffsetRange(busy, Offset(0), EndOffset(ENDS[0] + 3))]
    with pytest.raises(FatalError, match="above the last stable offset"):
        read_native_committed(spark, bootstrap, [topic], ranges=above)
    await admin.delete_records({busy: 2})
    with pytest.raises(OffsetOutOfRangeError, match="below the log start 2"):
        read_native_committed(spark, bootstrap, [topic], ranges=below)

    writer = connector.transactional_writer(topic)
    await writer.fence()
    log = TopicPartition(ABORTED_INDEX, system_partition(busy, INDEX_PARTITIONS))
    await writer.write([NewRecord(log, run_key(busy, Offset(0)), None)])
    await writer.close()
    with pytest.raises(AbortedIndexError, match="not whole"):
        read_native_committed(spark, bootstrap, [topic])


async def test_both_kinds_of_transaction_on_one_topic(
    bootstrap: str, topic_name: str, admin: LogAdmin, spark: SparkSession
):
    """D1, F3: a record is shown that neither kind hides; by the index as by the brokers."""
    data = TopicPartition(topic_name, 0)
    await asyncio.to_thread(create_topics, bootstrap, {topic_name: 1})
    writer = HandWriter(bootstrap, topic_name)
    producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
    kept, lost = TxnId(0, 1), TxnId(0, 2)
    written = writer.of_txn(kept, 0, 2)
    writer.of_txn(lost, 0, 2)
    await asyncio.to_thread(write, producer, data, 3, commit=False)
    plain = writer.records(0, 1)
    await asyncio.to_thread(write, producer, data, 2, commit=True)
    writer.commit(kept, 0, written)
    writer.abort(lost, 0)
    await until_stable(admin, data, 12)
    with pytest.raises(AbortedIndexError, match="not indexed"):
        read_committed(spark, bootstrap, [topic_name], by_index=True)
    await index_topics(bootstrap, topic_name)
    for by_index in (False, True):
        found = read_committed(spark, bootstrap, [topic_name], by_index=by_index)
        offsets = sorted(row[0] for row in found.select("offset").collect())
        assert offsets == [*written.offsets, *plain.offsets, 9, 10]


async def test_a_topic_that_does_not_exist_is_said(
    bootstrap: str, topic_name: str, spark: SparkSession
):
    """Its name is in the error."""
    with pytest.raises(FatalError, match=topic_name):
        read_native_committed(spark, bootstrap, [topic_name])
