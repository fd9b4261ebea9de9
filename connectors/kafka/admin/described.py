"""Descriptions of topics, decoded only if they differ from the last ones.

*Source*: version 10 of Kafka's Metadata, of brokers since 2.8; docs/protocols I16. librdkafka's
admin client makes an object for each partition and replica: 13 ms for a topic of 1000 partitions,
though a look at groups only has to know that the topic is still the same.
"""

from collections.abc import Sequence
from typing import Any

import kafka.errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from stilltide.connectors.kafka.authorization import on_topic
from stilltide.connectors.kafka.raw.errors import check
from stilltide.connectors.kafka.raw.line import Line
from stilltide.connectors.kafka.raw.repeated import THROTTLE_BYTES, RepeatedRequest
from stilltide.connectors.ports.admin import TopicDescription
from stilltide.schemas.rights import Operation

_VERSION = 10
_ABSENT = kafka_errors.UnknownTopicOrPartitionError.errno


class TopicsQuestion:
    """A question for topics, and its last answer.

    Args:
        names: the topics.
    """

    def __init__(self, names: Sequence[str]) -> None:
        topic = MetadataRequest.MetadataRequestTopic
        self._request = RepeatedRequest(
            MetadataRequest(
                topics=[topic(name=name) for name in names],
                allow_auto_topic_creation=False,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
                min_version=_VERSION,
                max_version=_VERSION,
            )
        )
        self._data: bytes | None = None
        self._found: dict[str, TopicDescription] = {}

    async def ask(self, line: Line, node: int) -> dict[str, TopicDescription]:
        """The topics that exist; the same object as long as nothing changes."""
        answer = await line.send(self._request, node)
        data = answer.data[THROTTLE_BYTES:]
        if data != self._data:
            self._found = _topics(MetadataResponse[_VERSION].decode(answer.data))
            self._data = data
        return self._found


def _topics(response: Any) -> dict[str, TopicDescription]:
    found: dict[str, TopicDescription] = {}
    for topic in response.topics:
        if topic.error_code == _ABSENT:
            continue
        check(topic.error_code, on_topic(Operation.DESCRIBE, topic.name))
        found[topic.name] = TopicDescription(
            topic.name,
            topic.topic_id.bytes,
            len(topic.partitions),
            min((len(one.replica_nodes) for one in topic.partitions), default=0),
        )
    return found
