"""A link ends what Kafka has left open of an earlier driver's transactions (H2)."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.copying import CopyWriter
from stilltide.connectors.ports.readers import NewRecord
from stilltide.schemas.native.transactions import ActiveProducer
from stilltide.schemas.replication.origins import topic_incarnation
from stilltide.schemas.replication.positions import Bucket, BucketKey, encode_bucket, encode_key
from stilltide.schemas.topics import REPLICATION_POSITIONS, system_partition
from stilltide.schemas.values import ClusterName, EndOffset, Offset, TopicPartition
from tests.support.links.link_process import Clusters, LinkProcess
from tests.support.native.hanging import write_hanging

A, B = ClusterName("a"), ClusterName("b")


@pytest.fixture
def target(clusters: Clusters) -> KafkaConnector:
    """Of the cluster to which the links copy."""
    return clusters.connector("b")


def a_link(clusters: Clusters, data: TopicPartition, log_path: Path) -> LinkProcess:
    """From `a` to `b`."""
    return LinkProcess(clusters.addresses, "a", "b", log_path, "--topics", data.topic)


async def write_numbers(clusters: Clusters, data: TopicPartition, first: int, end: int) -> None:
    """Writes the numbers `[first, end)` on `a`."""
    writer = clusters.connector("a").writer("numbers")
    for number in range(first, end):
        writer.append(data, b"%d" % number, lambda *_: None)
    assert await writer.flush(30)
    await writer.close()


async def positions_of(target: KafkaConnector, data: TopicPartition) -> TopicPartition:
    """The partition with the buckets of a data partition; its number is in the link's id."""
    admin = target.admin()
    described = await admin.describe_topics([REPLICATION_POSITIONS])
    await admin.close()
    count = described[REPLICATION_POSITIONS].partition_count
    return TopicPartition(REPLICATION_POSITIONS, system_partition(data, count))


@contextlib.asynccontextmanager
async def fenced_writer(target: KafkaConnector, name: str) -> AsyncIterator[CopyWriter]:
    """A writer that has taken its transactional id."""
    writer = target.copy_writer(name)
    await writer.fence()
    yield writer
    await writer.close()


async def producer_on(target: KafkaConnector, name: str, data: TopicPartition) -> ActiveProducer:
    """The producer of a transactional id as it is, with its sequence in one partition."""
    native = target.native_transactions("test")
    now = await native.describe_transaction(name)
    assert now is not None
    found = {it.producer_id: it for it in (await native.producers([data]))[data]}
    await native.close()
    known = found.get(now.producer_id, ActiveProducer(now.producer_id, 0, -1, -1, -1, None))
    again = known.last_sequence if known.producer_epoch == now.producer_epoch else -1
    return known._replace(producer_epoch=now.producer_epoch, last_sequence=again)


async def test_copies_without_their_bucket_are_aborted(
    clusters: Clusters, target: KafkaConnector, topic_name: str, tmp_path: Path
):
    """In a data partition and in the positions partition; the link goes on behind them."""
    await clusters.create("a", topic_name)
    data = TopicPartition(topic_name, 0)
    await write_numbers(clusters, data, 0, 3)
    async with a_link(clusters, data, tmp_path / "before.log"):
        await clusters.records("b", data, 3)
    positions = await positions_of(target, data)
    name = target.own_id(f"link-a-b-{positions.partition}")
    for place in (data, positions):
        producer = await producer_on(target, name, place)
        await write_hanging(clusters.addresses["b"], place, 2, producer=producer)
    await write_numbers(clusters, data, 3, 6)
    async with a_link(clusters, data, tmp_path / "after.log"):
        copies = await clusters.records("b", data, 6)
    assert [it.value for it in copies] == [b"%d" % number for number in range(6)]
    said = (tmp_path / "after.log").read_text()
    assert said.count("ending a hanging transaction") == 2


async def test_copies_with_their_bucket_are_committed(
    clusters: Clusters, target: KafkaConnector, topic_name: str, tmp_path: Path
):
    """The marker was left out in the data partition only."""
    await clusters.create("a", topic_name)
    data = TopicPartition(topic_name, 0)
    await write_numbers(clusters, data, 0, 3)
    async with a_link(clusters, data, tmp_path / "before.log"):
        await clusters.records("b", data, 3)
    positions = await positions_of(target, data)
    name = target.own_id(f"link-a-b-{positions.partition}")
    producer = await producer_on(target, name, data)
    _, first = await write_hanging(clusters.addresses["b"], data, 2, producer=producer)
    await write_numbers(clusters, data, 3, 6)
    ids = []
    for connector in (clusters.connector("a"), target):
        admin = connector.admin()
        ids.append(
            topic_incarnation((await admin.describe_topics([data.topic]))[data.topic].topic_id)
        )
        await admin.close()
    bucket = Bucket(*ids, Offset(0), EndOffset(5), Offset(0), EndOffset(first + 2), {})
    async with fenced_writer(target, f"bucket-{topic_name}") as writer:
        await writer.begin()
        key = encode_key(BucketKey(A, B, data, 0))
        await writer.commit([NewRecord(positions, key, encode_bucket(bucket))])
    async with a_link(clusters, data, tmp_path / "after.log"):
        copies = await clusters.records("b", data, 6)
    assert [it.value for it in copies] == [b"0", b"1", b"2", b"v", b"v", b"5"]
