"""Finds records in the target of a publish that the publish has not written.

*Source*: docs/protocols H7.
*Invariants*: a copy becomes visible together with the bucket that covers it (H2), so a visible
record behind the last bucket is none.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stilltide.connectors.ports.records import Fetching
from stilltide.pipeline.core.links.copying import Topics
from stilltide.pipeline.core.links.link import Link
from stilltide.pipeline.drivers.links.sides import Side
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.errors import PublishError
from stilltide.schemas.replication.publishes import PublishRoute
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition


async def refuse_foreign_records(
    here: Side, publish: PublishRoute, machine: Link[Any], topics: Mapping[TopicPartition, Topics]
) -> None:
    """Passes targets without records behind the last bucket.

    Args:
        here: the cluster.
        publish: source and target topic.
        machine: the link, which has read its buckets.
        topics: the data partitions to look at, in which nothing of the link's own is open.

    Raises:
        PublishError: somebody else has written a record; names its place.
        RetriableError: the cluster is away.
    """
    ends = await here.admin.end_offsets(list(topics), committed=True)
    unseen = list(_unseen(machine, topics, ends))
    if not unseen:
        return
    reader = here.connector.reader(f"{publish.link}-check", fetching=Fetching.SCANNING)
    try:
        async for records in scan(reader, unseen):
            for record in records:
                raise PublishError(
                    f"a record in {publish.target} on {here.name} is no copy of a record of"
                    f" {publish.source}",
                    detail="somebody else has written to the topic since the last copy",
                    hint=f"delete topic {publish.target}: it is made again with all copies; let"
                    " nobody else write to it",
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                )
    finally:
        await reader.close()


def _unseen(
    machine: Link[Any],
    topics: Mapping[TopicPartition, Topics],
    ends: Mapping[TopicPartition, EndOffset],
) -> Iterator[OffsetRange]:
    """The offsets behind the last bucket of each data partition."""
    for data, now in topics.items():
        partition = machine.partitions.get(data)
        copied_end = 0 if partition is None else partition.index.copied_end(now.target)
        first, end = max(copied_end, now.target_log_start), ends.get(data, EndOffset(0))
        if first < end:
            yield OffsetRange(data, Offset(first), end)
