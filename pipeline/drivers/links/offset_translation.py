"""Translates an offset of one cluster into an offset of another, by the offset index of their link.

*Source*: docs/protocols H3.
*Invariants*: the result is exact: the offset of the first copy of a record at or above the given
offset. The index is read, and of the log the range of each bucket up to the one with that copy.

Refuses: an offset that was not copied yet, or whose copies have left the log.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, LogReader, Record
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.replication.origins import Origin, PublishRoute, origin_of, topic_incarnation
from stilltide.schemas.replication.positions import Bucket, BucketKey, decode_bucket, key_of
from stilltide.schemas.topics import REPLICATION_POSITIONS, system_partition
from stilltide.schemas.values import ClusterName, Offset, OffsetRange, TopicPartition


class Translated(NamedTuple):
    """A translated offset.

    Attributes:
        offset: the offset on the other side: that of the first copy, or the end of the copies.
        record: offset of the record at or above the given offset that was found; None: no visible
            record is there.
    """

    offset: Offset
    record: Offset | None


class Copying(NamedTuple):
    """A data partition and its copies.

    Attributes:
        link: names of source and target in the keys of buckets.
        origin: the cluster that the `origin` headers of copies name.
        data: the data partition on the source.
        copies: the data partition on the target.
    """

    link: tuple[ClusterName, ClusterName]
    origin: ClusterName
    data: TopicPartition
    copies: TopicPartition


async def translate(
    source: Connector,
    target: Connector,
    names: tuple[ClusterName, ClusterName],
    data: TopicPartition,
    offset: Offset,
    *,
    timeout_s: float,
) -> Translated:
    """The first copy on the target of a local record of the source at or above an offset.

    Args:
        source: the cluster of the given offset.
        target: the cluster of the result.
        names: names of source and target.
        data: the data partition.
        offset: the offset on the source.
        timeout_s: longest absence of a cluster.

    Raises:
        RefusedError: the offset was not copied yet, or its copies have left the target's log.
        FatalError: the topic does not exist on one cluster, or no link has copied it.
        UnavailableError, RetriableError: a cluster is away.
    """
    copying = Copying(names, names[0], data, data)
    async with (
        closing(source.admin()) as there,
        closing(target.admin()) as here,
        closing(target.reader("offset-translation", fetching=Fetching.SCANNING)) as reader,
    ):
        topics = await incarnations_of(there, here, copying)
        index = await read_index(target, here, copying, timeout_s=timeout_s)
        return await first_copy(reader, here, index, topics, copying, offset=offset)


async def incarnations_of(
    source: LogAdmin, target: LogAdmin, copying: Copying
) -> tuple[bytes, bytes]:
    """The incarnations of both topics.

    Raises:
        FatalError: a data partition does not exist; names its cluster.
    """
    data, copies = copying.data, copying.copies
    there, here = await asyncio.gather(
        source.describe_topics([data.topic]), target.describe_topics([copies.topic])
    )
    original = _incarnation(there, data, copying.origin)
    return original, _incarnation(here, copies, copying.link[1])


def _incarnation(
    topics: Mapping[str, TopicDescription], data: TopicPartition, cluster: ClusterName
) -> bytes:
    topic = topics.get(data.topic)
    if topic is None or data.partition >= topic.partition_count:
        raise FatalError(
            f"the partition does not exist on cluster {cluster}",
            hint="correct topic, partition and clusters",
            data=data,
        )
    return topic_incarnation(topic.topic_id)


async def read_index(
    connector: Connector, admin: LogAdmin, copying: Copying, *, timeout_s: float
) -> OffsetIndex:
    """The offset index of a data partition, read to its present end; empty: nothing was copied.

    Raises:
        FatalError: no link has ever copied to the cluster.
        UnavailableError, RetriableError: the cluster is away.
    """
    topics = await admin.describe_topics([REPLICATION_POSITIONS])
    if REPLICATION_POSITIONS not in topics:
        raise FatalError(
            f"no link copies to cluster {copying.link[1]}", topic=REPLICATION_POSITIONS
        )
    count = topics[REPLICATION_POSITIONS].partition_count
    log = TopicPartition(REPLICATION_POSITIONS, system_partition(copying.copies, count))

    def decode(record: Record) -> tuple[int, Bucket | None] | None:
        key = key_of(record.key)
        if not isinstance(key, BucketKey):
            return None
        if (key.data, key.source, key.target) != (copying.copies, *copying.link):
            return None
        return key.number, None if record.value is None else decode_bucket(record.value)

    index, outages = OffsetIndex(copying.origin), OutageGuard(admin, timeout_s=timeout_s)
    feed = TopicFeed(connector, admin, "offset-index", [log], decode, outages=outages)
    for number, bucket in await feed.once():
        index.bucket_read(number, bucket)
    return index


async def first_copy(
    reader: LogReader,
    admin: LogAdmin,
    index: OffsetIndex,
    topics: tuple[bytes, bytes],
    copying: Copying,
    *,
    offset: Offset,
) -> Translated:
    """The first copy of a record at or above an offset of the source.

    Raises:
        RefusedError: the offset was not copied yet, or its copies have left the log.
        RetriableError: the cluster is away.
    """
    data = copying.copies
    bucket = index.from_source(*topics, offset)
    if bucket is None:
        newest = index.newest
        detail = f"copied are those below {newest.source_to}" if newest else "no link has copied it"
        raise RefusedError(
            f"offset {offset} was not copied yet",
            detail=detail,
            hint="is the link running? it copies what is missing",
            data=copying.data,
            offset=offset,
        )
    starts = await admin.start_offsets([data])
    for number in sorted(index.buckets):
        copied = index.buckets[number]
        same = (copied.source_incarnation, copied.target_incarnation) == topics
        if not same or copied.source_to <= offset or copied.target_from >= copied.target_to:
            continue
        if copied.target_from < starts.get(data, 0) and copied.source_from <= offset:
            raise gone(data, offset)
        read = OffsetRange(data, Offset(copied.target_from), copied.target_to)
        try:
            async for records in scan(reader, [read]):
                if translated := _first(partial(index.is_copy, copied), records, offset):
                    return translated
        except OffsetOutOfRangeError:
            raise gone(data, offset) from None
    return Translated(Offset(index.copied_end(topics[1])), None)


def _first(
    is_copy: Callable[[Origin], bool], records: Sequence[Record], offset: Offset
) -> Translated | None:
    """The first copy of a record at or above the offset; copies ascend by their origins."""
    _, last = next(copies_among(is_copy, reversed(records)), (0, -1))
    if last < offset:  # most often: the copy is in a later batch
        return None
    return next(Translated(*it) for it in copies_among(is_copy, records) if it[1] >= offset)


def copies_among(
    is_copy: Callable[[Origin], bool], records: Iterable[Record]
) -> Iterator[tuple[Offset, Offset]]:
    """The offsets of the copies among these records, on the target and on the source."""
    for record in records:
        origin = origin_of(record.headers)
        if origin is not None and is_copy(origin):
            yield record.offset, origin.offset


def gone(data: TopicPartition, offset: Offset) -> RefusedError:
    """The error for copies that retention has deleted."""
    return RefusedError(
        f"copies at offset {offset} have left the log",
        hint="retention has deleted them; nothing below the log start can be read",
        data=data,
        offset=offset,
    )


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
    async with (
        closing(connector.admin()) as admin,
        closing(connector.reader("offset-translation", fetching=Fetching.SCANNING)) as reader,
    ):
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
            data=copies,
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
            data=copying.copies,
            offset=offset,
        )
