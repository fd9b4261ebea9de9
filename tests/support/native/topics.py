"""Writes native transactions to topics of a real broker, and indexes them."""

import asyncio
from collections.abc import Sequence

from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.core.native.index_table import StoredIndex
from stilltide.pipeline.core.native.indexer import IndexLimits
from stilltide.pipeline.drivers.native.evidence import read_index_table
from stilltide.pipeline.drivers.native.owner import AbortedIndexing
from stilltide.schemas.topics import system_partition
from stilltide.schemas.values import TopicPartition
from tests.support.looks import between_looks

INDEX_PARTITIONS = 4
TIMEOUT_S = 90


def transactional(bootstrap: str, name: str) -> Producer:
    """A producer of native transactions."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT_S)
    return producer


def write(producer: Producer, data: TopicPartition, count: int, *, commit: bool) -> None:
    """Writes one transaction, which takes `count` offsets and one for the marker."""
    producer.begin_transaction()
    for number in range(count):
        while True:
            try:
                producer.produce(data.topic, b"%d" % number, partition=data.partition)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(TIMEOUT_S)
    if commit:
        producer.commit_transaction(TIMEOUT_S)
    else:
        producer.abort_transaction(TIMEOUT_S)


async def until_stable(admin: LogAdmin, data: TopicPartition, end: int) -> None:
    """Waits for the last marker, since the answer to a commit may come before the marker."""
    async with asyncio.timeout(TIMEOUT_S):
        while (await admin.end_offsets([data], committed=True))[data] < end:
            await between_looks()


def make_indexing(bootstrap: str, topics: Sequence[str]) -> AbortedIndexing:
    """An indexer of topics that writes without delay."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    return AbortedIndexing(
        connector,
        connector.batch_reader("test"),
        topics,
        partition_count=INDEX_PARTITIONS,
        patience_s=TIMEOUT_S,
        limits=IndexLimits(delay_ms_max=0),
    )


async def index_topics(bootstrap: str, *topics: str) -> None:
    """Indexes topics up to their last stable offsets of now."""
    indexing = make_indexing(bootstrap, topics)
    try:
        await indexing.once()
    finally:
        await indexing.close()


async def read_index(
    bootstrap: str, data: TopicPartition, partitions: int = INDEX_PARTITIONS
) -> StoredIndex | None:
    """The content of aborted-index for a partition; None if there is none."""
    connector = KafkaConnector(KafkaConfig(bootstrap))
    admin = connector.admin()
    try:
        where = system_partition(data, partitions)
        table = await read_index_table(connector, admin, where, keep_ranges=True)
    finally:
        await admin.close()
    return table.index(data)
