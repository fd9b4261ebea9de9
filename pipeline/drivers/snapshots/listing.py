"""Lists the snapshots of a cluster as they are in txn-snapshots.

*Source*: docs/protocols E2, E8.
*Invariants*: a snapshot that cannot be used is listed, too, with the reason.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.pipeline.drivers.shared.named_partitions import require_topics
from stilltide.pipeline.drivers.snapshots.logs import EndRecord, SnapshotLogs
from stilltide.pipeline.errors import SnapshotPartError
from stilltide.schemas.snapshots.snapshots import SnapshotEnd, checksum, part_key
from stilltide.schemas.topics import TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, TopicPartition


class ListedPart(NamedTuple):
    """A sealed part that a snapshot's end names.

    Attributes:
        number: number of the part.
        checksum: checksum of the part, from the end if there is one.
        bytes: size of the part's key and value; None: the part is missing or has another checksum.
    """

    number: int
    checksum: int
    bytes: int | None


class ListedSnapshot(NamedTuple):
    """A snapshot, and whether it can be used.

    Attributes:
        data: the data partition.
        partition: partition of txn-snapshots that holds the snapshot.
        end: the snapshot's end; None: there are only parts.
        record: place and size of the end's record; None without an end.
        parts: sealed parts of the snapshot, in order.
        aborted_count: number of ids in the aborted set; None: a part is missing.
        star_covered_to: K* of the partition of txn-snapshots.
        end_offset: high watermark of the data partition; None: it does not exist.
        problem: why the snapshot cannot be used; None: no problem was found.
    """

    data: TopicPartition
    partition: int
    end: SnapshotEnd | None
    record: EndRecord | None
    parts: tuple[ListedPart, ...]
    aborted_count: int | None
    star_covered_to: EndOffset
    end_offset: EndOffset | None
    problem: str | None

    @property
    def bytes(self) -> int:
        """The size of the end and all parts."""
        end_bytes = self.record.bytes if self.record is not None else 0
        return end_bytes + sum(part.bytes or 0 for part in self.parts)

    @property
    def behind(self) -> int | None:
        """The number of offsets from M to the end of the data partition; None: one is unknown."""
        if self.end_offset is None or self.end is None:
            return None
        return max(0, self.end_offset - self.end.max_read_position)


async def list_snapshots(connector: Connector) -> list[ListedSnapshot]:
    """Every snapshot of a cluster, ordered by topic and partition; takes 0.1 us for each id.

    Raises:
        FatalError: the system topic does not exist.
        DecodeError: a record is no snapshot's, or of a later version; names its place.
        RetriableError: the broker is away.
    """
    async with closing(connector.admin()) as admin:
        described = await admin.describe_topics([TXN_SNAPSHOTS])
        require_topics([TXN_SNAPSHOTS], described)
        async with closing(
            SnapshotLogs(connector, admin, range(described[TXN_SNAPSHOTS].partition_count))
        ) as logs:
            await logs.read_on()
        return await listed_snapshots(admin, logs)


async def listed_snapshots(admin: LogAdmin, logs: SnapshotLogs) -> list[ListedSnapshot]:
    """The snapshots in logs that were read, ordered by topic and partition; raises as above."""
    snapshots = sorted(
        (data, number)
        for number, table in logs.tables.items()
        for data in (*table.ends, *table.without_end())
    )
    topics = await admin.describe_topics(sorted({data.topic for data, _ in snapshots}))
    there = [
        data
        for data, _ in snapshots
        if data.topic in topics and data.partition < topics[data.topic].partition_count
    ]
    end_offsets = await admin.end_offsets(there)
    return [
        _one(logs, data, number, topics, end_offsets)
        if data in logs.tables[number].ends
        else _without_end(logs, data, number, end_offsets)
        for data, number in snapshots
    ]


def _without_end(
    logs: SnapshotLogs,
    data: TopicPartition,
    number: int,
    end_offsets: Mapping[TopicPartition, EndOffset],
) -> ListedSnapshot:
    table = logs.tables[number]
    parts = [
        ListedPart(part, checksum(key := part_key(data, part), value), len(key) + len(value))
        for part, value in sorted(table.part_values(data).items())
    ]
    end, star = end_offsets.get(data), table.star.markers_covered_to
    problem = "it has parts and no end"
    return ListedSnapshot(data, number, None, None, tuple(parts), None, star, end, problem)


def _one(
    logs: SnapshotLogs,
    data: TopicPartition,
    number: int,
    topics: Mapping[str, TopicDescription],
    end_offsets: Mapping[TopicPartition, EndOffset],
) -> ListedSnapshot:
    table = logs.tables[number]
    end = table.ends[data]
    values = table.part_values(data)
    parts = []
    for part, crc in enumerate(end.part_checksums, end.first_part):
        key, value = part_key(data, part), values.get(part)
        good = value is not None and checksum(key, value) == crc
        parts.append(ListedPart(part, crc, len(key) + len(value) if value and good else None))
    problem, count = None, None
    try:
        ids = [end.unsealed, *table.parts(data)]
        count = sum(len(sequences) for some in ids for sequences in some.values())
    except SnapshotPartError as error:
        problem = error.primary
    if data not in end_offsets:
        problem = "the topic does not exist"
    elif topics[data.topic].topic_id != end.topic_id:
        problem = "it is of a former topic of that name"
    return ListedSnapshot(
        data,
        number,
        end,
        logs.ends[data],
        tuple(parts),
        count,
        table.star.markers_covered_to,
        end_offsets.get(data),
        problem,
    )
