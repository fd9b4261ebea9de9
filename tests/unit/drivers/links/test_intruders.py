"""Every kind of bad record in the topics of links: links copy on (B10)."""

import pytest

from stilltide.schemas.topics import (
    REPLICATION_MARKERS,
    REPLICATION_POSITIONS,
    TXN_MARKERS,
    TXN_SNAPSHOTS,
)
from stilltide.schemas.values import TopicPartition
from tests.support.coordinator.worker_memory import until
from tests.support.intruders.kinds import kinds
from tests.support.links.memory_link import MemoryCluster, linked


def intrude(cluster: MemoryCluster, topic: str) -> None:
    """Writes every kind to every partition of a topic of a cluster."""
    for partition in range(len(cluster.broker.topics[topic].logs)):
        for kind in kinds(topic, compacted=True):
            data = TopicPartition(topic, partition)
            cluster.broker.append(data, kind.key, kind.value, kind.headers)


@pytest.mark.parametrize(
    "topic", [REPLICATION_MARKERS, REPLICATION_POSITIONS, TXN_MARKERS, TXN_SNAPSHOTS]
)
async def test_no_record_ends_a_link(topic: str):
    """On the source and on the target, before a link begins and while it copies."""
    a, b = MemoryCluster("a"), MemoryCluster("b", orders=0)
    for cluster in (a, b):
        intrude(cluster, topic)
    a.write(b"1")
    async with linked(a, b):
        await until(lambda: b.values() == [b"1"])
        for cluster in (a, b):
            intrude(cluster, topic)
        a.write(b"2")
        await until(lambda: b.values() == [b"1", b"2"])
