"""Bytes that a Kafka record may hold, and that a reader of ours did not expect.

What a user saw: another program wrote records whose headers had empty names, no values or the same
name twice, and the user asked whether a subscription shows them as they are.
"""

from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.pipeline.client.subscription import Subscription
from tests.support.coordinator.coordinated import CoordinatedTopic


@pytest.fixture
async def topic(bootstrap: str, topic_name: str) -> AsyncIterator[CoordinatedTopic]:
    """A topic of one partition."""
    made = await CoordinatedTopic.create(KafkaConnector(KafkaConfig(bootstrap)), topic_name, 1)
    yield made
    await made.close()


async def test_odd_headers_are_delivered_as_they_are(bootstrap: str, topic: CoordinatedTopic):
    """Headers without value, with an empty value or an empty name, and a name twice, arrive."""
    headers = [("none", None), ("empty", b""), ("", b"nameless"), ("twice", b"1"), ("twice", b"2")]
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic.name, b"odd", headers=headers)
    assert producer.flush(30) == 0
    async with Subscription([topic.name], group=topic.name, bootstrap_servers=bootstrap) as records:
        assert (await anext(records)).headers == headers
