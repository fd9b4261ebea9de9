"""A link between memory brokers: exactly once, in order, whatever restarts (H1-H6)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from connectors.memory.broker import MemoryBroker
from connectors.memory.clock import MemoryClock
from connectors.memory.connector import MemoryConnector
from pipeline.core.replication.link import LinkLimits
from pipeline.drivers.replication import Replication, ReplicationOptions
from pipeline.drivers.replication_topics import TopicChoice
from schemas.replication import origin_of
from schemas.topics import TopicSpec
from schemas.values import ClusterName, TopicPartition

WAIT_S = 20.0
ORDERS = TopicPartition("orders", 0)


class Tick:
    """A clock that moves whenever it is read: deadlines always come."""

    def __init__(self) -> None:
        self.at_ms = 1_000_000

    def now_ms(self) -> int:
        self.at_ms += 10
        return self.at_ms


class Cluster:
    """A broker with a name."""

    def __init__(self, name: str) -> None:
        self.name = ClusterName(name)
        self.broker = MemoryBroker(f"id-{name}")
        self.connector = MemoryConnector(self.broker)

    def create(self, topic: str = "orders", partitions: int = 1, **configs: str) -> None:
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        self.broker.create_topic(TopicSpec(topic, partitions, wanted))

    def write(self, *values: bytes, data: TopicPartition = ORDERS) -> None:
        for value in values:
            self.broker.append(data, b"k", value, None)

    def values(self, data: TopicPartition = ORDERS) -> list[bytes | None]:
        if self.broker.log(data) is None:
            return []
        return [it.value for it in self.broker.records(data)]


OPTIONS = ReplicationOptions(
    partition_count=2,
    look_interval_s=0.01,
    retry_delay_s=0.01,
    limits=LinkLimits(linger_ms=20, records_max=100, position_interval_ms=20),
)


@asynccontextmanager
async def linked(
    source: Cluster, target: Cluster, options: ReplicationOptions = OPTIONS
) -> AsyncIterator[Replication]:
    """A link that runs meanwhile."""
    replication = Replication(
        (source.name, source.connector), (target.name, target.connector), Tick(), options
    )
    running = asyncio.create_task(replication.run())
    try:
        yield replication
    finally:
        replication.stop()
        async with asyncio.timeout(WAIT_S):
            await running


async def until(ready: Callable[[], bool]) -> None:
    """Returns when it is so."""
    async with asyncio.timeout(WAIT_S):
        while not ready():
            await asyncio.sleep(0)


async def test_records_are_copied_once_and_in_order():
    """With their keys, to the same partition of a topic made for it; and again what follows."""
    a, b = Cluster("a"), Cluster("b")
    a.create(partitions=2, retention_ms="1234")
    a.write(b"1", b"2", b"3")
    async with linked(a, b):
        await until(lambda: b.values() == [b"1", b"2", b"3"])
        a.write(b"4")
        await until(lambda: b.values() == [b"1", b"2", b"3", b"4"])
    described = b.broker.describe("orders")
    assert described is not None
    assert described[0].partition_count == 2
    assert b.broker.set_configs("orders") == {"retention.ms": "1234"}
    origins = [origin_of(it.headers) for it in b.broker.records(ORDERS)]
    assert [one.offset for one in origins if one] == [0, 1, 2, 3]
    assert {one.incarnation.cluster for one in origins if one} == {"a"}
