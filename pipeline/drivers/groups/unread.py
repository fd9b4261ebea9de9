"""The visible records that a consumer group has not read, counted or returned, as of now.

*Source*: docs/protocols D, G (the cursor in the group's commit).

*Invariants*: the group is not joined, and nothing is written; a record that the group's commit says
is acknowledged is not returned.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import GroupConnector, closing
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.offset_index.intervals import RangeSet
from stilltide.pipeline.core.outside_log import OutsideLog, outside_log
from stilltide.pipeline.core.pending_ack.cursor import Cursor, decode
from stilltide.pipeline.drivers.groups.outside import log_ranges
from stilltide.pipeline.drivers.read_committed.visible_scan import visible_scan
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition


class GroupPosition(NamedTuple):
    """Where a group stands in one partition.

    Attributes:
        committed: offset that the group has committed; None: it has committed nothing.
        cursor: where the group goes on: its commit, or the log start if that is higher.
        log: the offsets that the log holds.
    """

    committed: Offset | None
    cursor: Cursor
    log: Range


class Unread(NamedTuple):
    """The next visible records that the group has not read.

    Attributes:
        data: the partition.
        records: these records, perhaps none.
        position: every visible record below was returned or is acknowledged.
        over: whether `position` is the decided end.
    """

    data: TopicPartition
    records: list[Record]
    position: EndOffset
    over: bool


class Lag(NamedTuple):
    """How many visible records a group has not read in one partition.

    Attributes:
        data: the partition.
        committed: offset that the group has committed; None: it has committed nothing.
        decided_end: offset up to which readers come at present; None: counting ended earlier.
        visible: visible records that are left, or that were counted.
        at_least: whether counting ended before the decided end.
        log: the offsets that the log holds.
        outside: the group's position, if the log does not hold it; None: a member may go on there.
    """

    data: TopicPartition
    committed: Offset | None
    decided_end: EndOffset | None
    visible: int
    at_least: bool
    log: Range
    outside: OutsideLog | None = None


async def positions_of(
    connector: GroupConnector, admin: LogAdmin, topic: str, group: str
) -> dict[TopicPartition, GroupPosition]:
    """The position of a group in each partition of a topic.

    Raises:
        FatalError: the topic does not exist.
        DecodeError: a commit of a `Subscription` is damaged, or of a later version.
    """
    described = await admin.describe_topics([topic])
    if topic not in described:
        raise FatalError("the topic does not exist", hint="correct its name", topic=topic)
    partitions = [TopicPartition(topic, it) for it in range(described[topic].partition_count)]
    ranges = await log_ranges(admin, partitions)
    async with closing(connector.group_admin()) as groups:
        committed = (await groups.committed([group], partitions)).get(group, {})
    positions: dict[TopicPartition, GroupPosition] = {}
    for data, log in ranges.items():
        commit = committed.get(data)
        if commit is None:
            positions[data] = GroupPosition(None, Cursor(log.first), log)
            continue
        try:
            cursor = decode(commit.offset, commit.metadata) or Cursor(commit.offset)
        except DecodeError as error:
            raise error.at(data.topic, data.partition, commit.offset) from None
        offset = Offset(max(log.first, cursor.offset))
        positions[data] = GroupPosition(commit.offset, cursor._replace(offset=offset), log)
    return positions


async def unread(
    connector: GroupConnector,
    admin: LogAdmin,
    positions: dict[TopicPartition, GroupPosition],
    *,
    client_id: str,
    timeout_s: float,
    enough: Callable[[TopicPartition, EndOffset], bool] = lambda _data, _position: False,
) -> AsyncGenerator[Unread, None]:
    """The visible records that a group at these positions has not read.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        positions: the group's positions, of `positions_of`.
        client_id: prefix of the clients' names at the brokers.
        timeout_s: longest time that the cluster may be away.
        enough: asked with each position that is reached; True ends the partition, without `over`.

    Raises:
        OffsetOutOfRangeError: records left the log before they were read.
        UnavailableError: the cluster stayed away.
        FatalError: the system topics do not exist.
    """
    acknowledged = {data: RangeSet(it.cursor.acknowledged) for data, it in positions.items()}
    begin = {data: it.cursor.offset for data, it in positions.items()}
    async with (
        visible_scan(connector, admin, client_id=client_id, timeout_s=timeout_s) as scan,
        aclosing(scan.run(begin)) as parts,
    ):
        async for part in parts:
            done = acknowledged[part.data]
            records = [it for it in part.records if it.offset not in done] if done else part.records
            yield Unread(part.data, records, part.position, part.over)
            if not part.over and enough(part.data, part.position):
                scan.leave(part.data)


async def lag_of(
    connector: GroupConnector,
    topic: str,
    group: str,
    *,
    records_max: int,
    timeout_s: float,
    progress: Callable[[TopicPartition, int], None] = lambda _data, _count: None,
) -> list[Lag]:
    """How many visible records of a topic a group has not read, in `records_max` offsets at most.

    Args:
        connector: the cluster.
        topic: name of the topic.
        group: name of the group, which need not exist.
        records_max: offsets of a partition after which counting ends, >= 1.
        timeout_s: longest time that the cluster may be away.
        progress: called with a partition, and the records counted there so far.

    Raises:
        Errors of `positions_of` and `unread`.
    """
    async with closing(connector.admin()) as admin:
        positions = await positions_of(connector, admin, topic, group)
        limits = {data: it.cursor.offset + records_max for data, it in positions.items()}
        counts = dict.fromkeys(positions, 0)
        ends: dict[TopicPartition, EndOffset] = {}
        reading = unread(
            connector,
            admin,
            {data: it for data, it in positions.items() if it.cursor.offset <= it.log.end},
            client_id="stilltide-lag",
            timeout_s=timeout_s,
            enough=lambda data, position: position >= limits[data],
        )
        async with aclosing(reading) as parts:
            async for part in parts:
                counts[part.data] += sum(it.offset < limits[part.data] for it in part.records)
                progress(part.data, counts[part.data])
                if part.over and part.position <= limits[part.data]:
                    ends[part.data] = part.position
    return [
        _lag(group, data, position, counts[data], ends.get(data))
        for data, position in sorted(positions.items())
    ]


def _lag(
    group: str, data: TopicPartition, position: GroupPosition, count: int, end: EndOffset | None
) -> Lag:
    """The lag in one partition; a position beyond the end of the log was not counted from."""
    outside = (
        None
        if position.committed is None
        else outside_log(data, group, position.committed, *position.log)
    )
    at_least = end is None and position.cursor.offset <= position.log.end
    return Lag(data, position.committed, end, count, at_least, position.log, outside)
