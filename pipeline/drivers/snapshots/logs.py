"""Reads partitions of txn-snapshots for batch jobs and operators.

*Source*: docs/protocols D4, E4.
*Invariants*: the tables hold committed records in topic order, up to a last stable offset; the next
read continues there, so that it finds a part which compaction has replaced meanwhile.

Refuses: a topic without the compaction that snapshots need.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from stilltide.connectors.errors import OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import Record, TimedRecord
from stilltide.pipeline.core.snapshots.recovery import SnapshotTable
from stilltide.pipeline.drivers.shared.feed import TopicFeed
from stilltide.schemas.snapshots.snapshots import EndKey, decode_key
from stilltide.schemas.topics import TXN_SNAPSHOTS, system_topics
from stilltide.schemas.values import Offset, TopicPartition


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
        before = dict(self._feed.positions)
        try:
            async for _ in self._feed.to_now():
                pass
        except OffsetOutOfRangeError:
            self._forget()
            raise
        return before != self._feed.positions

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
