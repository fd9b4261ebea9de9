"""Finds the partitions that a user names."""

from collections.abc import Iterable

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.values import TopicPartition


async def named_partitions(
    admin: LogAdmin, topic: str, partitions: Iterable[int] = ()
) -> list[TopicPartition]:
    """The partitions of a topic with these numbers, each once and ascending; no number: all.

    Raises:
        FatalError: the topic does not exist.
        RefusedError: a partition does not exist.
    """
    described = (await admin.describe_topics([topic])).get(topic)
    if described is None:
        raise FatalError("the topic does not exist", hint="correct the name", topic=topic)
    wanted = sorted(set(partitions)) or range(described.partition_count)
    for partition in wanted:
        if partition >= described.partition_count:
            raise RefusedError(
                f"there is no partition {partition}",
                detail=f"the topic has {described.partition_count}, counted from 0",
                topic=topic,
            )
    return [TopicPartition(topic, partition) for partition in wanted]
