"""Reads partitions of txn-snapshots for batch jobs and operators.

*Source*: docs/protocols D4, E1, E4, E8.
*Invariants*: the tables hold committed records in topic order, up to a last stable offset; the next
read continues there, so that it finds a part which compaction has replaced meanwhile.

Refuses: a topic without the compaction that snapshots need.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import FencedError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record, TimedRecord
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.core.snapshots.writer import SnapshotLimits, SnapshotWriter
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.pipeline.drivers.shared.named_partitions import missing_topic
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.errors import (
    MarkersTrimmedError,
    SnapshotError,
)
from stilltide.schemas.snapshots.snapshots import EndKey, decode_key
from stilltide.schemas.topics import TXN_LOG, TXN_MARKERS, TXN_SNAPSHOTS, system_topics
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class EndRecord(NamedTuple):
    """The record of a snapshot's end.

    Attributes:
        offset: offset of the record.
        timestamp_ms: time of the write, milliseconds since 1970.
        bytes: size of the record's key and value.
    """

    offset: Offset
    timestamp_ms: int
    bytes: int


class SnapshotLogs:
    """The records of some partitions of txn-snapshots; each call of `read_on` reads further.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        partitions: partitions of txn-snapshots to read.
        only: data partitions of interest; None: all.

    Attributes:
        tables: snapshots of each partition that was read.
        ends: record of the end of each snapshot.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        partitions: Iterable[int],
        *,
        only: Collection[TopicPartition] | None = None,
    ) -> None:
        self._numbers = sorted(set(partitions))
        self._only = only
        logs = [TopicPartition(TXN_SNAPSHOTS, number) for number in self._numbers]
        self._feed = TopicFeed(connector, admin, "snapshots", logs, self._take, timestamps=True)
        self._forget()

    async def read_on(self) -> bool:
        """Reads up to the last stable offsets as of now; whether there was anything new.

        Raises as `TopicFeed.to_now`; after an `OffsetOutOfRangeError` the tables are empty.
        """
        try:
            return await self._feed.read_on()
        except OffsetOutOfRangeError:
            self._forget()
            raise

    def _forget(self) -> None:
        self.tables = {number: SnapshotTable(number, only=self._only) for number in self._numbers}
        self.ends: dict[TopicPartition, EndRecord] = {}

    def _take(self, record: Record) -> None:
        self.tables[record.partition].record_read(record.offset, record.key, record.value)
        name = decode_key(record.key)
        if not isinstance(name, EndKey):
            return
        if record.value is None:
            self.ends.pop(name.data, None)
        else:
            assert isinstance(record, TimedRecord)
            size = len(record.key or b"") + len(record.value)
            self.ends[name.data] = EndRecord(record.offset, record.timestamp_ms, size)

    async def close(self) -> None:
        """Releases the reader."""
        await self._feed.close()


async def check_policy(admin: LogAdmin, partition_count: int) -> None:
    """Checks that txn-snapshots, which exists, has the configuration that snapshots need.

    Raises:
        FatalError: it has another configuration; names the value found and the value wanted.
    """
    wanted = system_topics(coordinators=1, partitions=partition_count)
    await admin.ensure_topics([spec for spec in wanted if spec.name == TXN_SNAPSHOTS])


async def marker_bounds(admin: LogAdmin, markers: TopicPartition) -> tuple[Offset, EndOffset]:
    """Start and end offset of a marker partition; raises `RetriableError`, `FatalError`."""
    starts = await admin.start_offsets([markers])
    ends = await admin.end_offsets([markers])
    if markers not in starts or markers not in ends:
        raise missing_topic(TXN_MARKERS)
    return starts[markers], ends[markers]


async def recovered_writer(
    connector: Connector,
    admin: LogAdmin,
    outages: OutageGuard,
    partition: int,
    *,
    limits: SnapshotLimits,
    clock: Clock,
) -> SnapshotWriter:
    """The machine of a writer that has fenced others; it needs the markers from its `position`.

    Raises:
        FencedError: another writer has written meanwhile.
        SnapshotError: a part is missing, or markers are missing that no snapshot has absorbed.
        DecodeError: a record cannot be decoded; names its place.
    """
    snapshots = TopicPartition(TXN_SNAPSHOTS, partition)
    markers = TopicPartition(TXN_MARKERS, partition)
    end = await outages.call(_stable_end, admin, snapshots)
    table = await _table(connector, admin, outages, snapshots)
    try:
        marker_start, marker_end = await outages.call(marker_bounds, admin, markers)
        machine = await asyncio.to_thread(  # a million aborted ids take a second
            SnapshotWriter,
            partition,
            table,
            marker_start,
            nonce=connector.chance.token(16),
            limits=limits,
            now_ms=clock.monotonic_ms(),
        )
        _check_reach(machine, partition, marker_end)
    except SnapshotError as error:
        # A writer that has fenced this one may have dropped parts and trimmed markers meanwhile.
        if await outages.call(_stable_end, admin, snapshots) > end:
            raise FencedError("another snapshot writer has taken over", detail=str(error)) from None
        raise
    return machine


def _check_reach(machine: SnapshotWriter, partition: int, marker_end: EndOffset) -> None:
    """The log of markers reaches at least to the end of the markers that snapshots absorbed."""
    if machine.position > marker_end:
        raise MarkersTrimmedError(
            "the marker topic ends before the last marker that snapshots have absorbed",
            detail=f"it ends at {marker_end}, absorbed are markers below {machine.position}",
            hint="was txn-markers deleted and created again? delete txn-snapshots, too, only"
            " if no outcome of a transaction matters any more",
            topic=TXN_MARKERS,
            partition=partition,
            offset=marker_end,
        )


async def _stable_end(admin: LogAdmin, snapshots: TopicPartition) -> EndOffset:
    ends = await admin.end_offsets([snapshots], committed=True)
    if snapshots not in ends:
        raise missing_topic(TXN_SNAPSHOTS)
    return ends[snapshots]


async def _table(
    connector: Connector, admin: LogAdmin, outages: OutageGuard, snapshots: TopicPartition
) -> SnapshotTable:
    """The table of what is stored now."""
    table = SnapshotTable(snapshots.partition)

    def take(record: Record) -> None:
        table.record_read(record.offset, record.key, record.value)

    name = f"snapshots-{snapshots.partition}"
    await TopicFeed(connector, admin, name, [snapshots], take, outages=outages).once()
    return table


async def data_positions(
    admin: LogAdmin, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, DataPosition]:
    """Log start, last stable offset and end of data partitions; a missing one is left out.

    Raises:
        RetriableError: the broker is away, or a topic was created or deleted meanwhile.
    """
    topics = sorted({data.topic for data in partitions})
    before = await admin.describe_topics(topics)
    there = [
        data
        for data in partitions
        if data.topic in before and data.partition < before[data.topic].partition_count
    ]
    starts = await admin.start_offsets(there)
    stable = await admin.end_offsets(there, committed=True)
    ends = await admin.end_offsets(there)
    after = await admin.describe_topics(topics)
    for data in there:
        same = data.topic in after and after[data.topic].topic_id == before[data.topic].topic_id
        if not same or data not in starts or data not in stable or data not in ends:
            raise RetriableError(
                "the topic was created or deleted while its offsets were read",
                data=data,
            )
    return {
        data: DataPosition(
            before[data.topic].topic_id, EndOffset(starts[data]), stable[data], ends[data]
        )
        for data in there
    }


async def coordinator_log_ends(admin: LogAdmin) -> Mapping[int, EndOffset]:
    """The end offset of every coordinator's log, by coordinator; raises `RetriableError`."""
    described = (await admin.describe_topics([TXN_LOG])).get(TXN_LOG)
    if described is None:
        raise missing_topic(TXN_LOG)
    logs = [TopicPartition(TXN_LOG, number) for number in range(described.partition_count)]
    ends = await admin.end_offsets(logs)
    if len(ends) < len(logs):
        raise RetriableError("a coordinator's log has no end offset yet", topic=TXN_LOG)
    return {log.partition: end for log, end in ends.items()}
