"""Finds the topics and partitions that a user names, and asks for many in parts."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.values import TopicPartition

NAMES_PER_CALL = 100
"""Topics in one question: the configs of each take 0.1 ms of the processor."""


def questions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """The names in order, in parts that are asked for together."""
    for first in range(0, len(names), NAMES_PER_CALL):
        yield names[first : first + NAMES_PER_CALL]


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


async def named_topics(
    admin: LogAdmin, topics: Sequence[str], *, also: Sequence[str] = ()
) -> dict[str, TopicDescription]:
    """The descriptions of topics, and of those of `also` that exist.

    Raises:
        FatalError: one of `topics` does not exist.
    """
    described = await admin.describe_topics([*topics, *also])
    for topic in topics:
        if topic not in described:
            raise FatalError(
                "the topic does not exist",
                hint="check the topic's name and the cluster's address",
                topic=topic,
            )
    return described


def all_partitions(described: Iterable[TopicDescription]) -> list[TopicPartition]:
    """All partitions of topics, in the order of the topics."""
    return [
        TopicPartition(topic.name, number)
        for topic in described
        for number in range(topic.partition_count)
    ]


def require_topics(needed: Iterable[str], described: Mapping[str, TopicDescription]) -> None:
    """Raises `FatalError` for the first of `needed` that is not in `described`."""
    for topic in needed:
        if topic not in described:
            raise missing_topic(topic)


def missing_topic(topic: str) -> FatalError:
    """The error of a system topic that does not exist."""
    return FatalError(
        "the system topic does not exist",
        hint="start a worker for this cluster: `stilltide worker`",
        topic=topic,
    )
