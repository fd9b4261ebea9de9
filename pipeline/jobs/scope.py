"""What an audit reads: every bound resolved once, in the one order that is sound.

*Source*: protocols.md D2, C6; facts: spark.md 2 (late binding).

*Invariants*: the markers' ends are read after the data's ends. A marker is written after the last
record of its transaction, so whatever outcome was known when the data ended is in the range.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from connectors.base import LogAdmin, TopicDescription
from connectors.errors import FatalError
from connectors.spark.source import OffsetRange
from schemas.placement import system_partition
from schemas.topics import TXN_MARKERS
from schemas.values import TopicPartition


@dataclass(frozen=True)
class Scope:
    """The ranges of one audit.

    Attributes:
        data: each partition of the audited topics, `[log start, last stable offset)`.
        markers: the partitions of txn-markers that serve them, likewise.
        topic_ids: Kafka's 16-byte id of each audited topic.
    """

    data: tuple[OffsetRange, ...]
    markers: tuple[OffsetRange, ...]
    topic_ids: dict[str, bytes]


async def resolve_scope(admin: LogAdmin, topics: Sequence[str]) -> Scope:
    """The scope of an audit of `topics`, as of now.

    Raises:
        FatalError: a topic, or txn-markers, does not exist.
        RetriableError: the broker is away.
    """
    described = await admin.describe_topics([*topics, TXN_MARKERS])
    for topic in topics:
        if topic not in described:
            raise FatalError(
                "the topic does not exist",
                hint="check the name, and that this is the cluster it lives on",
                topic=topic,
            )
    if TXN_MARKERS not in described:
        raise FatalError(
            "the outcomes of transactions are not on this cluster",
            hint="a worker creates this topic: start one with `stilltide worker`",
            topic=TXN_MARKERS,
        )
    data = [place for topic in sorted(set(topics)) for place in _partitions(described[topic])]
    marker_count = described[TXN_MARKERS].partition_count
    serving = sorted({system_partition(place, marker_count) for place in data})
    return Scope(
        data=await _ranges(admin, data),
        markers=await _ranges(admin, [TopicPartition(TXN_MARKERS, p) for p in serving]),
        topic_ids={topic: described[topic].topic_id for topic in topics},
    )


def _partitions(topic: TopicDescription) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for number in range(topic.partition_count)]


async def _ranges(admin: LogAdmin, places: Sequence[TopicPartition]) -> tuple[OffsetRange, ...]:
    starts = await admin.start_offsets(places)
    ends = await admin.end_offsets(places, committed=True)
    for place in places:
        if place not in starts or place not in ends:
            raise FatalError(
                "the partition vanished while the audit began",
                hint="audit again once the topic is no longer being deleted or created",
                topic=place.topic,
                partition=place.partition,
            )
    return tuple(OffsetRange(place, starts[place], ends[place]) for place in places)
