"""`stilltide index` on a real broker (F3): incremental, restartable, follows retention."""

import asyncio
import json
from pathlib import Path

import pytest
from confluent_kafka import Producer

from connectors.base import EndReached, LogAdmin
from connectors.clock import SystemClock
from connectors.errors import FencedError
from connectors.kafka.config import KafkaConfig
from connectors.kafka.connector import KafkaConnector
from pipeline.cli.output import Row
from pipeline.core.native_transactions.index_table import IndexTable, StoredIndex
from pipeline.core.native_transactions.indexer import IndexLimits
from pipeline.drivers.aborted_indexing import AbortedIndexing
from schemas.placement import system_partition
from schemas.topics import ABORTED_INDEX, TopicSpec
from schemas.values import TopicPartition
from tests.support.local import run_stilltide

PARTITIONS = 4


def transactional(bootstrap: str, name: str) -> Producer:
    """A producer of native transactions."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    return producer


def write(producer: Producer, data: TopicPartition, count: int, *, commit: bool) -> None:
    """One transaction; it takes `count` offsets and one more."""
    producer.begin_transaction()
    for _ in range(count):
        producer.produce(data.topic, b"v", partition=data.partition)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


async def until_stable(admin: LogAdmin, data: TopicPartition, end: int) -> None:
    """Waits for the last marker, which the answer to a commit does not."""
    async with asyncio.timeout(20):
        while (await admin.end_offsets([data], committed=True))[data] < end:
            """Each look takes a round trip."""


async def read_index(bootstrap: str, data: TopicPartition) -> StoredIndex | None:
    """What aborted-index holds about a partition."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    where = TopicPartition(ABORTED_INDEX, system_partition(data, PARTITIONS))
    table, reader = IndexTable(keep_ranges=True), connector.reader("test")
    await reader.assign({where: 0})
    async with asyncio.timeout(20):
        while True:
            for item in await reader.read():
                if isinstance(item, EndReached):
                    await reader.close()
                    return table.index(data)
                table.record_read(item.key, item.value)


def index(bootstrap: str, cwd: Path, *arguments: str) -> list[Row]:
    """What `stilltide index once` prints."""
    done = run_stilltide(
        "index", "once", *arguments, "--bootstrap-servers", bootstrap, "-o", "json", cwd=cwd
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def index_here(bootstrap: str, topic: str) -> None:
    """The same in this process."""
    indexing = make_indexing(bootstrap, topic)
    await indexing.once()
    await indexing.close()


def make_indexing(bootstrap: str, topic: str) -> AbortedIndexing:
    """The indexer of a topic."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    return AbortedIndexing(
        connector,
        connector.batch_reader("test"),
        SystemClock(),
        [topic],
        partition_count=PARTITIONS,
        patience_s=20,
        limits=IndexLimits(delay_ms_max=0),
    )


async def test_ranges_and_coverage(bootstrap: str, topic_name: str, tmp_path: Path):
    """Once, then again after more transactions, after retention, and after a drop."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    data = TopicPartition(topic_name, 0)
    producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
    for count, commit in ((3, False), (2, True), (1, False), (1, False)):
        await asyncio.to_thread(write, producer, data, count, commit=commit)
    ends = 11
    await until_stable(admin, data, ends)
    rows = index(bootstrap, tmp_path, topic_name)
    assert rows == [
        {"topic": topic_name, "partition": 0, "covered_to": ends},
        {"topic": topic_name, "partition": 1, "covered_to": 0},
    ]
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert list(stored.ranges) == [(0, 3), (7, 10)]
    assert stored.covers(0, ends)

    await asyncio.to_thread(write, producer, data, 2, commit=False)
    await until_stable(admin, data, 14)
    await index_here(bootstrap, topic_name)
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert [offset for offset in range(20) if offset in stored.ranges] == [0, 1, 2, 7, 8, 9, 11, 12]

    await admin.delete_records({data: 8})
    await index_here(bootstrap, topic_name)
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert stored.coverage.covered_from == 8
    assert not stored.covers(7, 9)

    dropped = run_stilltide(
        "index", "drop", topic_name, "--bootstrap-servers", bootstrap, cwd=tmp_path
    )
    assert dropped.returncode == 0, dropped.stderr
    assert await read_index(bootstrap, data) is None
    await index_here(bootstrap, topic_name)
    stored = await read_index(bootstrap, data)
    assert stored is not None
    assert list(stored.ranges) == [(9, 13)]
    await admin.close()


async def test_a_running_indexer_follows_and_is_replaced(bootstrap: str, topic_name: str):
    """It takes up what is written; once another one has taken over, it writes no more."""
    admin = KafkaConnector(KafkaConfig(bootstrap)).admin()
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    data = TopicPartition(topic_name, 0)
    indexing = make_indexing(bootstrap, topic_name)
    running = asyncio.create_task(indexing.run())
    producer = await asyncio.to_thread(transactional, bootstrap, topic_name)
    for end in (3, 6):
        await asyncio.to_thread(write, producer, data, 2, commit=False)
        async with asyncio.timeout(20):
            while (stored := await read_index(bootstrap, data)) is None or not stored.covers(
                0, end
            ):
                assert not running.done()
    await index_here(bootstrap, topic_name)
    await asyncio.to_thread(write, producer, data, 2, commit=False)
    async with asyncio.timeout(20):
        with pytest.raises(FencedError):
            await running
    await indexing.close()
    await admin.close()


def test_a_missing_topic_is_said(bootstrap: str, topic_name: str, tmp_path: Path):
    """Exit code 1 and the name."""
    done = run_stilltide(
        "index", "once", topic_name, "--bootstrap-servers", bootstrap, cwd=tmp_path
    )
    assert done.returncode == 1
    assert topic_name in done.stderr
