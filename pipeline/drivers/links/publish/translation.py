"""Translates an offset between the two topics of a publish, in either direction.

*Source*: docs/protocols H3, H7.
*Invariants*: the result is exact. From the source to the target it is the first copy of a record at
or above the offset. From the target to the source it is the record of which the first copy at or
above the offset was made; behind the last copy it is the end of what was copied.

Refuses: an offset that was not copied yet, or whose copies have left the log; topics of which
neither is published to the other.
"""

import asyncio
from functools import partial

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import Fetching
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.pipeline.drivers.links.offset_translation import (
    Copying,
    Translated,
    copies_among,
    first_copy,
    gone,
    incarnations_of,
    read_index,
)
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.replication.publishes import PublishRoute
from stilltide.schemas.values import ClusterName, Offset, OffsetRange, TopicPartition


async def translate_published(
    connector: Connector,
    cluster: ClusterName,
    data: TopicPartition,
    other: str,
    offset: Offset,
    *,
    timeout_s: float,
) -> Translated:
    """The offset in another topic that stands for an offset of a data partition.

    Args:
        connector: connector of the cluster.
        cluster: name of the cluster.
        data: the data partition of the given offset.
        other: the topic of the result; one of both topics is published to the other.
        offset: the given offset.
        timeout_s: longest absence of the cluster.

    Raises:
        RefusedError: see above.
        FatalError: a topic does not exist.
        UnavailableError, RetriableError: the cluster is away.
    """
    admin = connector.admin()
    reader = connector.reader("offset-translation", fetching=Fetching.SCANNING)
    try:
        for publish in (PublishRoute(data.topic, other), PublishRoute(other, data.topic)):
            copying = _copying(publish, cluster, data.partition)
            topics = await incarnations_of(admin, admin, copying)
            index = await read_index(connector, admin, copying, timeout_s=timeout_s)
            if not index.buckets:
                continue
            if copying.data == data:
                return await first_copy(reader, admin, index, topics, copying, offset=offset)
            return await _first_original(reader, admin, index, topics, copying, offset=offset)
        raise RefusedError(
            f"neither of {data.topic} and {other} is published to the other on {cluster}",
            hint=f"`stilltide publish {data.topic} --to {other}` does it",
        )
    finally:
        await asyncio.gather(reader.close(), admin.close())


def _copying(publish: PublishRoute, cluster: ClusterName, partition: int) -> Copying:
    return Copying(
        (publish.link, cluster),
        cluster,
        TopicPartition(publish.source, partition),
        TopicPartition(publish.target, partition),
    )


async def _first_original(
    reader: LogReader,
    admin: LogAdmin,
    index: OffsetIndex,
    topics: tuple[bytes, bytes],
    copying: Copying,
    *,
    offset: Offset,
) -> Translated:
    """The record of which the first copy at or above an offset of the target was made."""
    copies = copying.copies
    starts, ends = await asyncio.gather(admin.start_offsets([copies]), admin.end_offsets([copies]))
    if offset > ends.get(copies, 0):
        raise RefusedError(
            f"offset {offset} is beyond the end of the log",
            detail=f"the log ends at {ends.get(copies, 0)}",
            topic=copies.topic,
            partition=copies.partition,
            offset=offset,
        )
    if offset < starts.get(copies, 0):
        raise gone(copies, offset)
    for bucket in index.from_target(topics[1], offset):
        first = max(offset, bucket.target_from)
        try:
            async for records in scan(reader, [OffsetRange(copies, first, bucket.target_to)]):
                for at, original in copies_among(partial(index.is_copy, bucket), records):
                    _check_alive(bucket.source_incarnation, topics[0], copying, offset)
                    return Translated(original, at)
        except OffsetOutOfRangeError:
            raise gone(copies, offset) from None
    newest = index.newest
    assert newest is not None
    _check_alive(newest.source_incarnation, topics[0], copying, offset)
    return Translated(Offset(newest.source_to), None)


def _check_alive(copied: bytes, now: bytes, copying: Copying, offset: Offset) -> None:
    """Passes copies of the source topic as it is now."""
    if copied != now:
        raise RefusedError(
            f"the copies from offset {offset} on are of an earlier topic {copying.data.topic}",
            detail="the source topic was deleted and created again",
            topic=copying.copies.topic,
            partition=copying.copies.partition,
            offset=offset,
        )
