"""Groups' coordinators, which the admin remembers."""

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.connector import KafkaConnector
from stilltide.connectors.ports.readers import Committed
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import Offset, TopicPartition

NOWHERE = 99
"""No broker has this number."""


async def test_a_coordinator_that_is_gone_is_looked_for(bootstrap: str, topic_name: str):
    """Where it was is forgotten with the first error."""
    connector, data = KafkaConnector(KafkaConfig(bootstrap)), TopicPartition(topic_name, 0)
    topics = connector.admin()
    await topics.ensure_topics([TopicSpec(topic_name, 1)])
    await topics.close()
    admin, moved = connector.group_admin(), Committed(Offset(3), "")
    await admin.move(topic_name, {data: Committed(Offset(1), "")})
    admin._nodes[topic_name] = NOWHERE
    assert await admin.active([topic_name]) == set()
    admin._nodes[topic_name] = NOWHERE
    await admin.move(topic_name, {data: moved})
    admin._nodes[topic_name] = NOWHERE
    assert await admin.committed([topic_name], [data]) == {topic_name: {data: moved}}
    await admin.close()
