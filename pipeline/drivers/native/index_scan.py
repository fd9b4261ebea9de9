"""Reads what aborted-index holds, once; and finds the same in a log itself.

*Source*: protocols.md F2-F4.
"""

from typing import NamedTuple

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.fetching import Fetching
from stilltide.connectors.ports.readers import BatchReader
from stilltide.connectors.ports.records import EndReached
from stilltide.pipeline.core.native.aborted_ranges import AbortedRanges, RangeBuilder
from stilltide.pipeline.core.native.batch_filter import BatchFilter
from stilltide.pipeline.core.native.index_table import IndexTable
from stilltide.pipeline.drivers.shared.system_topics import missing_topic
from stilltide.schemas.errors import placed_each
from stilltide.schemas.native.aborted_index import Coverage
from stilltide.schemas.placement import system_partition
from stilltide.schemas.topics import ABORTED_INDEX
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class FoundRanges(NamedTuple):
    """Every aborted record in `[covered_from, covered_to)`, as ranges."""

    ranges: AbortedRanges
    covered_from: Offset
    covered_to: EndOffset


class IndexedPartition(NamedTuple):
    """The index of a data partition, against what the brokers say of it.

    Attributes:
        data: the partition.
        coverage: what the index says.
        last_stable_offset: what the partition says, None when there is no such partition.
        problem: why the index is of no use, empty when it is.
    """

    data: TopicPartition
    coverage: Coverage
    last_stable_offset: EndOffset | None
    problem: str


async def read_index_table(
    connector: Connector, admin: LogAdmin, partition: int, *, keep_ranges: bool
) -> IndexTable:
    """What a partition of aborted-index held when this was called.

    Raises:
        FatalError: there is no such topic or partition.
        DecodeError: a record is not of this topic; names its place.
        RetriableError: the broker is away.
    """
    index = TopicPartition(ABORTED_INDEX, partition)
    starts = await admin.start_offsets([index])
    ends = await admin.end_offsets([index])
    if index not in starts or index not in ends:
        raise missing_topic(ABORTED_INDEX)
    table = IndexTable(keep_ranges=keep_ranges)
    reader = connector.reader(f"{ABORTED_INDEX}-{partition}", fetching=Fetching.SCANNING)
    try:
        await reader.assign({index: starts[index]})
        position = EndOffset(starts[index])
        while position < ends[index]:
            with placed_each(await reader.read()) as each:
                for item in each:
                    if isinstance(item, EndReached):
                        position = item.end_offset
                    else:
                        table.record_read(item.key, item.value)
    finally:
        await reader.close()
    return table


async def indexed_ranges(
    connector: Connector, admin: LogAdmin, data: TopicPartition
) -> FoundRanges | None:
    """What the index knows of a partition; None when it knows nothing, or of another topic.

    Raises:
        AbortedIndexError: the index is not whole.
        FatalError, DecodeError, RetriableError: as `read_index_table`.
    """
    described = await admin.describe_topics([ABORTED_INDEX, data.topic])
    if ABORTED_INDEX not in described:
        raise missing_topic(ABORTED_INDEX)
    partition = system_partition(data, described[ABORTED_INDEX].partition_count)
    table = await read_index_table(connector, admin, partition, keep_ranges=True)
    stored = table.index(data)
    if stored is None or stored.coverage.topic_id != described[data.topic].topic_id:
        return None
    return FoundRanges(stored.ranges, stored.coverage.covered_from, stored.coverage.covered_to)


async def ranges_in_log(batches: BatchReader, admin: LogAdmin, data: TopicPartition) -> FoundRanges:
    """What aborted in a partition, read from its log, up to the last stable offset of now.

    Raises:
        FatalError: there is no such partition.
        OffsetOutOfRangeError: the log was trimmed faster than it was read.
        RetriableError: the broker is away.
    """
    starts = await admin.start_offsets([data])
    ends = await admin.end_offsets([data], committed=True)
    if data not in starts or data not in ends:
        raise FatalError(f"{data} does not exist", hint="correct the name or the number")
    ranges, builder = AbortedRanges(), RangeBuilder()
    position, end = starts[data], ends[data]
    while position < end:
        found = await batches.fetch(data, position)
        filter_ = BatchFilter(position, found.aborted)
        for batch in found.batches:
            ended = builder.batch_read(batch, filter_.batch_read(batch), position)
            if ended is not None:
                ranges.append(ended)
        position = filter_.position
    if builder.open is not None:
        ranges.append(builder.open)
    return FoundRanges(ranges, starts[data], EndOffset(position))


async def indexed_partitions(connector: Connector, admin: LogAdmin) -> list[IndexedPartition]:
    """Every data partition that aborted-index knows, by topic and number.

    Raises:
        FatalError, DecodeError, RetriableError: as `read_index_table`.
    """
    described = (await admin.describe_topics([ABORTED_INDEX])).get(ABORTED_INDEX)
    if described is None:
        raise missing_topic(ABORTED_INDEX)
    coverages: dict[TopicPartition, tuple[Coverage, str]] = {}
    for partition in range(described.partition_count):
        table = await read_index_table(connector, admin, partition, keep_ranges=False)
        coverages |= {data: table.claimed(data) for data in table}
    topics = await admin.describe_topics(sorted({data.topic for data in coverages}))
    ends = await admin.end_offsets(list(coverages), committed=True)
    return [
        IndexedPartition(
            data,
            coverage,
            ends.get(data),
            broken or _mismatch(coverage, topics.get(data.topic), ends.get(data)),
        )
        for data, (coverage, broken) in sorted(coverages.items())
    ]


def _mismatch(
    coverage: Coverage, topic: TopicDescription | None, last_stable_offset: EndOffset | None
) -> str:
    """Why a whole index is not of this partition; empty when it is."""
    if topic is None or last_stable_offset is None:
        return "the partition does not exist"
    if topic.topic_id != coverage.topic_id:
        return "of a former topic of this name"
    if last_stable_offset < coverage.covered_to:
        return "the log ends below what was indexed"
    return ""
