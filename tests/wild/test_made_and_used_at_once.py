"""The first `stilltide publish` on a fresh cluster ended with "Unknown topic or partition".

The publish had just created the topic. Kafka's controller answers before the brokers have read its
log, and on a busy machine a broker was asked for the topic before the broker knew it.
"""

import asyncio

import kafka.errors as kafka_errors
import pytest
from kafka.protocol.metadata import MetadataRequest

from stilltide.connectors.errors import MissingTopicError
from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.connectors.memory.copying import MemoryCopyWriter
from stilltide.connectors.ports.copying import Copies, Span
from stilltide.schemas.replication.origins import PublishRoute
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import TopicPartition
from tests.support.links.memory_link import MemoryCluster, published, publishing_of, until

ROUNDS = 10
WAIT_S = 180
PUBLISH = PublishRoute("orders", "orders.committed")
COMMITTED = TopicPartition("orders.committed", 0)


async def leaders(client: RawClient, topic: str) -> list[dict[int, int]]:
    """The leader of each partition as each broker names it, by one question without repetition."""

    async def ask(line: Line) -> list[dict[int, int]]:
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)],
            allow_auto_topic_creation=False,
            max_version=8,
        )
        answers = [await line.send(request, node) for node in await line.nodes()]
        return [
            {one.partition_index: one.leader_id for it in answer.topics for one in it.partitions}
            for answer in answers
        ]

    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await client.call(lambda line: line.persist(lambda: ask(line), 0))
            except kafka_errors.NodeNotReadyError:
                continue


async def test_what_was_created_is_known_to_the_brokers(bootstrap: str, topic_name: str):
    """A topic, and partitions that it gains, have leaders at every broker when the call returns."""
    config = KafkaConfig(bootstrap)
    admin, client = KafkaConnector(config).admin(), RawClient(SharedLine(config, "looks"), "a test")
    try:
        for number in range(ROUNDS):
            topic = f"{topic_name}-{number}"
            await admin.ensure_topics([TopicSpec(topic, 1)])
            assert [it.keys() for it in await leaders(client, topic)] == [{0}]
            await admin.add_partitions(topic, 8)
            (found,) = await leaders(client, topic)
            assert found.keys() == {*range(8)}
            assert min(found.values()) >= 0
    finally:
        await client.close()
        await admin.close()


class BehindWriter(MemoryCopyWriter):
    """A writer of copies whose broker does not know a topic for a while."""

    def __init__(self, broker: MemoryBroker, name: str, refusals: list[TopicPartition]) -> None:
        super().__init__(broker, name)
        self._refusals = refusals

    async def copy(self, data: TopicPartition, copies: Copies, span: Span) -> None:
        """Refuses as often as the list says."""
        if self._refusals:
            raise MissingTopicError(f"cannot copy to {self._refusals.pop()}: unknown topic")
        await super().copy(data, copies, span)


class BehindConnector(MemoryConnector):
    """A cluster with a broker that is behind."""

    def __init__(self, broker: MemoryBroker, refusals: int) -> None:
        super().__init__(broker)
        self._broker_behind = broker
        self.refusals = [COMMITTED] * refusals

    def copy_writer(self, transactional_id: str) -> MemoryCopyWriter:
        """A writer that is refused at first."""
        return BehindWriter(self._broker_behind, transactional_id, self.refusals)


def cluster_behind(refusals: int) -> MemoryCluster:
    """A cluster with records in `orders`, and a broker that is behind."""
    a = MemoryCluster("a")
    a.connector = BehindConnector(a.broker, refusals)
    a.write(*[b"%d" % number for number in range(5)])
    return a


async def test_a_publish_waits_for_a_broker_that_is_behind():
    """A new topic that a broker does not know at first is copied to a moment later, once."""
    a = cluster_behind(refusals=3)
    async with published(a, PUBLISH):
        await until(lambda: len(a.values(COMMITTED)) == 5)
    assert a.values(COMMITTED) == a.values()


async def test_a_topic_that_stays_unknown_ends_the_publish(monkeypatch: pytest.MonkeyPatch):
    """The wait is bounded, and the error is that of the broker."""
    monkeypatch.setattr("stilltide.pipeline.drivers.links.link._KNOWN_S", 0.5)
    a = cluster_behind(refusals=1_000_000)
    with pytest.raises(MissingTopicError, match="unknown topic"):
        async with asyncio.timeout(WAIT_S):
            await publishing_of(a, PUBLISH).run()
