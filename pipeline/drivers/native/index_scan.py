"""Reads aborted-index once, and finds the same ranges in a log itself.

*Source*: docs/protocols F2-F4.
"""

from typing import NamedTuple

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import BatchReader
from stilltide.connectors.ports.records import Record
from stilltide.pipeline.core.native.aborted_ranges import AbortedRanges, RangeBuilder
from stilltide.pipeline.core.native.batch_filter import BatchFilter
from stilltide.pipeline.core.native.index_table import IndexTable
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.system_topics import missing_topic
from stilltide.schemas.native.aborted_index import Coverage
from stilltide.schemas.placement import system_partition
from stilltide.schemas.topics import ABORTED_INDEX
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class FoundRanges(NamedTuple):
    """The ranges of aborted records in `[covered_from, covered_to)`."""

    ranges: AbortedRanges
    covered_from: Offset
    covered_to: EndOffset


class IndexedPartition(NamedTuple):
    """The index of a data partition, compared with the partition's log.

    Attributes:
        data: the data partition.
        coverage: coverage of the index.
        last_stable_offset: last stable offset of the log; None: the partition does not exist.
        problem: why the index cannot be used; empty: it can be used.
    """

    data: TopicPartition
    coverage: Coverage
    last_stable_offset: EndOffset | None
    problem: str


async def read_index_table(
    connector: Connector, admin: LogAdmin, partition: int, *, keep_ranges: bool
) -> IndexTable:
    """The records of a partition of aborted-index, up to the end as of the call.

    Raises:
        FatalError: the topic or partition does not exist.
        DecodeError: a record is foreign; names its place.
        RetriableError: the broker is away.
    """
    table = IndexTable(keep_ranges=keep_ranges)

    def take(record: Record) -> None:
        table.record_read(record.key, record.value)

    index = TopicPartition(ABORTED_INDEX, partition)
    await TopicFeed(connector, admin, str(index), [index], take).once(open_too=True)
    return table


async def indexed_ranges(
    connector: Connector, admin: LogAdmin, data: TopicPartition
) -> FoundRanges | None:
    """The indexed ranges of a partition; None: there is no index, or it is of another topic id.

    Raises:
        AbortedIndexError: the index is incomplete.
        FatalError, DecodeError, RetriableError: see `read_index_table`.
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
    """The aborted ranges of a partition, from its log, up to the last stable offset as of now.

    Raises:
        FatalError: the partition does not exist.
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
    """Every data partition in aborted-index, ordered by topic and number.

    Raises:
        FatalError, DecodeError, RetriableError: see `read_index_table`.
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
    """Why a complete index does not belong to this partition; empty: it does."""
    if topic is None or last_stable_offset is None:
        return "the partition does not exist"
    if topic.topic_id != coverage.topic_id:
        return "of a former topic of this name"
    if last_stable_offset < coverage.covered_to:
        return "the log ends below what was indexed"
    return ""
