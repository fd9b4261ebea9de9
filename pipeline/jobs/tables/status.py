"""How far a table is behind its topics, and its last batches.

*Source*: docs/protocols K3, K4. Nothing is written, so the table's writer may run meanwhile.

Refuses: what its writer refuses, such as a topic that was created again.
"""

from collections.abc import Mapping
from contextlib import aclosing
from typing import NamedTuple

from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, LogReader, TimedRecord
from stilltide.pipeline.core.tables.increments import Increments, PartitionBounds, TopicBounds
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.named_partitions import all_partitions, named_topics
from stilltide.schemas.tables.progress import TableProgress
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition


class PartitionBehind(NamedTuple):
    """What a table does not hold of a partition.

    Attributes:
        left: `[next offset of the table, last stable offset)`.
        oldest_ms: timestamp of the first record in it, milliseconds since 1970; None: there is no
            record, only markers or nothing.
    """

    left: OffsetRange
    oldest_ms: int | None

    @property
    def offsets(self) -> int:
        """Number of offsets; markers and aborted records are offsets, too."""
        return self.left.end - self.left.start

    def seconds(self, now_ms: int) -> float:
        """Age of the first record that is missing; 0 without any."""
        return 0.0 if self.oldest_ms is None else max(0, now_ms - self.oldest_ms) / 1000


async def partitions_behind(
    connector: Connector, progress: TableProgress
) -> tuple[PartitionBehind, ...]:
    """What the table with this progress does not hold, by partition.

    Args:
        connector: the cluster.
        progress: of the table's last batch, which has topics.

    Raises:
        TableError: a topic was created again, records were deleted before they were stored, or a
            log ends below what the table holds.
        FatalError: a topic does not exist.
        RetriableError: the broker is away.
    """
    topics = sorted(progress.topic_ids)
    async with closing(connector.admin()) as admin:
        described = await named_topics(admin, topics)
        places = all_partitions(described.values())
        starts = await admin.start_offsets(places)
        ends = await admin.end_offsets(places, committed=True)
    bounds = {
        data: PartitionBounds(starts[data], ends[data], EndOffset(0))
        for data in places
        if data in starts and data in ends
    }
    ids = {topic.name: topic.topic_id for topic in described.values()}
    increments = Increments(topics, progress, 1)
    increments.bounds_read(TopicBounds(ids, bounds))
    left = [
        OffsetRange(data, progress.positions.get(data, known.start), known.stable_end)
        for data, known in sorted(bounds.items())
    ]
    async with closing(
        connector.reader("table-status", timestamps=True, fetching=Fetching.SCANNING)
    ) as reader:
        return tuple([PartitionBehind(read, await _oldest_ms(reader, read)) for read in left])


async def _oldest_ms(reader: LogReader, read: OffsetRange) -> int | None:
    async with aclosing(scan(reader, [read])) as scanned:
        async for records in scanned:
            first = records[0]
            assert isinstance(first, TimedRecord)
            return first.timestamp_ms
    return None


def batch_offsets(before: TableProgress | None, after: TableProgress) -> int | None:
    """How many offsets a batch has covered; None: where it began is not known."""
    if before is None:
        return None
    known: Mapping[TopicPartition, Offset] = before.positions
    return sum(
        position - known[data] for data, position in after.positions.items() if data in known
    )
