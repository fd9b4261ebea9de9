"""The size of partitions on disk, over kafka-python's messages: confluent-kafka does not ask.

*Source*: KIP-113 (`DescribeLogDirs`); KIP-827 (an error code of the whole answer, from version 3).
"""

from collections.abc import Mapping

import kafka.errors as kafka_errors
from kafka.protocol.admin.cluster import DescribeLogDirsRequest

from stilltide.connectors.kafka.config import KafkaConfig
from stilltide.connectors.kafka.errors import DESCRIBE_CLUSTER
from stilltide.connectors.kafka.raw.line import Line, RawClient, SharedLine, check
from stilltide.schemas.values import TopicPartition

_REFUSED_VERSION_MIN = 3
"""The first version whose answer says that the user lacks the right; Kafka 3.2."""


def sizes_client(config: KafkaConfig) -> RawClient:
    """What asks for sizes; the caller closes it. Raises as `RawClient`."""
    return RawClient(SharedLine(config, "stilltide-sizes"), "a question for sizes")


async def partition_sizes(
    client: RawClient, counts: Mapping[str, int]
) -> dict[TopicPartition, int]:
    """The bytes of the largest replica of each partition.

    Args:
        client: of `sizes_client`.
        counts: by the name of a topic, its number of partitions.

    Raises:
        NotAuthorizedError: the user lacks Describe on the cluster.
        ConnectorError: the cluster is away.
    """
    topics = [
        DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=list(range(count)))
        for name, count in counts.items()
    ]

    async def attempt(line: Line) -> dict[TopicPartition, int]:
        sizes: dict[TopicPartition, int] = {}
        for node in await line.nodes():
            request = DescribeLogDirsRequest(topics=topics, min_version=_REFUSED_VERSION_MIN)
            try:
                answer = await line.send(request, node)
            except kafka_errors.KafkaConnectionError:
                continue  # a broker that is away; its replicas are on others, too
            check(answer.error_code, DESCRIBE_CLUSTER)
            for folder in answer.results:
                for topic in folder.topics:
                    for part in topic.partitions:
                        data = TopicPartition(topic.name, part.partition_index)
                        sizes[data] = max(sizes.get(data, 0), part.partition_size)
        return sizes

    return await client.ask(attempt, "cannot ask for the sizes of topics", DESCRIBE_CLUSTER)
