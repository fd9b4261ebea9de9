"""Partitions of txn-snapshots as batch jobs and operators read them.

*Source*: protocols.md D4, E4.
*Invariants*: what was read is committed, in topic order, up to a last stable offset; reading on
goes on from there, so that a part which compaction has replaced meanwhile is found.

Refuses: a topic without the compaction that snapshots are written for.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.fetching import Fetching
from stilltide.connectors.ports.records import TimedRecord
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.snapshots.snapshots import EndKey, decode_key
from stilltide.schemas.topics import TXN_SNAPSHOTS, system_topics
from stilltide.schemas.values import Offset, OffsetRange, TopicPartition


class EndRecord(NamedTuple):
    """The record of a snapshot's end.

    Attributes:
        offset: its offset.
        timestamp_ms: when it was written, milliseconds since 1970.
        bytes: its size, key and value.
    """

    offset: Offset
    timestamp_ms: int
    bytes: int


class SnapshotLogs:
    """Read by `read_on`, as often as the caller likes.

    Args:
        connector: the cluster.
        admin: of the same cluster; the caller's to close.
        partitions: of txn-snapshots.
        only: data partitions of interest; None: all.

    Attributes:
        tables: what each partition says.
        ends: the end of each snapshot, as it lies in the topic.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        partitions: Iterable[int],
        *,
        only: Collection[TopicPartition] | None = None,
    ) -> None:
        self.tables = {number: SnapshotTable(number, only=only) for number in partitions}
        self.ends: dict[TopicPartition, EndRecord] = {}
        self._admin = admin
        self._reader = connector.reader("snapshots", timestamps=True, fetching=Fetching.SCANNING)
        self._positions: dict[TopicPartition, Offset] = {}

    async def read_on(self) -> bool:
        """Reads up to the last stable offsets as of now; whether there was anything new.

        Raises:
            DecodeError: a record is none of this topic, or of a later version; names its place.
            FatalError: the topic does not exist.
            RetriableError: the broker is away.
        """
        logs = [TopicPartition(TXN_SNAPSHOTS, number) for number in self.tables]
        ends = await self._admin.end_offsets(logs, committed=True)
        if not self._positions:
            self._positions = await self._admin.start_offsets(logs)
        ranges = [OffsetRange(log, self._positions[log], ends[log]) for log in logs]
        async for records in scan(self._reader, ranges):
            for record in records:
                table = self.tables[record.partition]
                table.record_read(record.offset, record.key, record.value)
                name = decode_key(record.key)
                if not isinstance(name, EndKey):
                    continue
                if record.value is None:
                    self.ends.pop(name.data, None)
                else:
                    assert isinstance(record, TimedRecord)
                    size = len(record.key or b"") + len(record.value)
                    self.ends[name.data] = EndRecord(record.offset, record.timestamp_ms, size)
        self._positions = {log: Offset(max(self._positions[log], ends[log])) for log in logs}
        return any(read.start < read.end for read in ranges)

    async def close(self) -> None:
        """Releases the reader."""
        await self._reader.close()


async def check_policy(admin: LogAdmin, partition_count: int) -> None:
    """Passes when txn-snapshots, which exists, is configured as its writers and readers need it.

    Raises:
        FatalError: it is not; names what was found and wanted.
    """
    wanted = system_topics(coordinators=1, partitions=partition_count)
    await admin.ensure_topics([spec for spec in wanted if spec.name == TXN_SNAPSHOTS])
