"""Reads partitions of txn-snapshots for batch jobs and operators.

*Source*: docs/protocols D4, E4.
*Invariants*: the tables hold committed records in topic order, up to a last stable offset; the next
read continues there, so that it finds a part which compaction has replaced meanwhile.

Refuses: a topic without the compaction that snapshots need.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import Fetching, TimedRecord
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.drivers.service.passed_over import pass_over
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.errors import ForeignKeyError
from stilltide.schemas.snapshots.snapshots import EndKey, decode_key
from stilltide.schemas.topics import TXN_SNAPSHOTS, system_topics
from stilltide.schemas.values import Offset, OffsetRange, TopicPartition


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
        self.tables = {number: SnapshotTable(number, only=only) for number in partitions}
        self.ends: dict[TopicPartition, EndRecord] = {}
        self._admin = admin
        self._connector = connector
        self._reader = connector.reader("snapshots", timestamps=True, fetching=Fetching.SCANNING)
        self._positions: dict[TopicPartition, Offset] = {}

    async def read_on(self) -> bool:
        """Reads up to the last stable offsets as of now; whether there was anything new.

        Raises:
            DecodeError: a record is no snapshot's, or of a later version; names its place.
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
                try:
                    table.record_read(record.offset, record.key, record.value)
                except ForeignKeyError as error:
                    await pass_over(self._connector, record, error)
                    continue
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
    """Checks that txn-snapshots, which exists, has the configuration that snapshots need.

    Raises:
        FatalError: it has another configuration; names the value found and the value wanted.
    """
    wanted = system_topics(coordinators=1, partitions=partition_count)
    await admin.ensure_topics([spec for spec in wanted if spec.name == TXN_SNAPSHOTS])
