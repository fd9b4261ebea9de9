"""Tails the partitions of txn-snapshots that serve the assigned data partitions.

*Source*: docs/protocols D4, D5, E4, E8.

*Invariants*: a snapshot is passed on only if it is complete as of a last stable offset, and if it
belongs to the topic id at which the data partition is read.

No `TopicFeed`: a snapshot is passed on at each end of its partition, while a stranger's open
transaction may hide later records for as long as it likes.

Refuses: a snapshot with a gap that further reading does not fill, and one of a former topic.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.pipeline.core.snapshots.recovery import Snapshot, SnapshotTable
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import pass_over
from stilltide.pipeline.drivers.snapshots.client import connect_snapshots
from stilltide.pipeline.errors import SnapshotPartError, TopicRecreatedError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import ForeignKeyError, StilltideError
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.topics import TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

ASK_S = 5.0
"""Longest wait for the first snapshot of a topic that was created again."""

_log = get_logger(__name__)


class _Source:
    """A partition of txn-snapshots, and the data partitions for which it is read."""

    def __init__(self, place: TopicPartition, served: set[TopicPartition]) -> None:
        self.place = place
        self.served = served
        self.table = SnapshotTable(place.partition, only=served)
        self.told: dict[TopicPartition, SnapshotEnd | None] = {}

    def unread(self) -> list[TopicPartition]:
        """The data partitions whose snapshot has changed since it was last passed on, or is broken.

        Parts without an end are broken: `SnapshotTable.snapshot` says so.
        """
        ends, broken = self.table.ends, self.table.without_end()
        changed = [data for data in self.served if ends.get(data) is not self.told.get(data)]
        return changed + [data for data in broken if data not in changed]


class SnapshotTail:
    """Reads snapshots in `run`; after `add` and `remove`, cancel `run` and call it again.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster.
        outages: repeats calls while the cluster is away.
        client_id: name of the reader at the brokers.
        partition_count: number of partitions of txn-snapshots.
        topic_id: the id at which a topic is read; None: the topic did not exist.
        last: finds the snapshot in use, whose ids a new snapshot of the data partition may share.
        snapshot_read: called with each new snapshot, and again after a new `run`; its errors stop
            the reading.
        batch_read: called after each batch of records.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        outages: OutageGuard,
        *,
        client_id: str,
        partition_count: int,
        topic_id: Callable[[str], bytes | None],
        last: Callable[[TopicPartition, SnapshotEnd], Snapshot | None],
        snapshot_read: Callable[[TopicPartition, Snapshot], Awaitable[None]],
        batch_read: Callable[[], None],
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._outages = outages
        self._client_id = client_id
        self._partition_count = partition_count
        self._topic_id = topic_id
        self._last = last
        self._snapshot_read = snapshot_read
        self._batch_read = batch_read
        self._assigned: set[TopicPartition] = set()
        self._caught_up_at: dict[TopicPartition, float] = {}
        self._read_to: dict[TopicPartition, EndOffset] = {}
        self._absorbed_to: dict[TopicPartition, EndOffset] = {}  # by data partition, in this run
        self._passed_on = asyncio.Event()

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds data partitions, whose snapshots are read."""
        self._assigned.update(partitions)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading snapshots of these data partitions."""
        self._assigned.difference_update(partitions)

    def caught_up_at(self, data: TopicPartition) -> float | None:
        """Loop time at which this run had read the snapshot of a data partition; None: not yet."""
        return self._caught_up_at.get(data)

    def source(self, data: TopicPartition) -> TopicPartition:
        """The partition that has the snapshots of a data partition."""
        return TopicPartition(TXN_SNAPSHOTS, system_partition(data, self._partition_count))

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of the snapshots passed on in this run; None: none yet."""
        return self._read_to.get(self.source(data))

    async def absorbed_to(self, partitions: Iterable[TopicPartition]) -> Offset:
        """The offset below which snapshots have absorbed every marker of these data partitions.

        Waits until `run` has passed on the snapshots that were there when it began (E9).
        """
        wanted = list(partitions)
        while not self._absorbed_to.keys() >= set(wanted):
            self._passed_on.clear()
            await self._passed_on.wait()
        return Offset(min(self._absorbed_to[data] for data in wanted))

    async def run(self) -> None:
        """Reads until cancelled.

        Raises:
            DecodeError: a record is no snapshot's; names its topic, partition and offset.
            SnapshotPartError: a part is missing, has another checksum than the end names, or there
                is no end.
            TopicRecreatedError: a snapshot is of a former topic of that name.
            UnavailableError: the cluster stayed away.
        """
        if not self._assigned:
            return
        served: defaultdict[TopicPartition, set[TopicPartition]] = defaultdict(set)
        for data in sorted(self._assigned):
            served[self.source(data)].add(data)
        sources = {place: _Source(place, data) for place, data in served.items()}
        reader = self._connector.reader(self._client_id)
        try:
            await reader.assign(dict.fromkeys(sources, Offset(0)))
            while True:
                for item in await self._outages.call(reader.read, may_rest=True):
                    await self._item_read(sources, item)
                self._batch_read()
        finally:
            self._caught_up_at.clear()
            self._read_to.clear()
            self._absorbed_to.clear()
            await reader.close()

    async def _item_read(
        self, sources: dict[TopicPartition, _Source], item: Record | EndReached
    ) -> None:
        source = sources[item.data]
        if isinstance(item, Record):
            try:
                source.table.record_read(item.offset, item.key, item.value)
            except ForeignKeyError as error:
                await pass_over(self._connector, item, error)
            return
        for data in source.unread():
            if not await self._take(source, data, item):
                return
        if source.place not in self._read_to:
            for data in source.served:
                self._absorbed_to[data] = source.table.absorbed_to(data)
            self._passed_on.set()
        self._read_to[source.place] = item.end_offset
        for data in source.served:
            self._caught_up_at.setdefault(data, asyncio.get_running_loop().time())

    async def _take(self, source: _Source, data: TopicPartition, reached: EndReached) -> bool:
        """Passes a snapshot on; False: it is complete only after further reading (E4)."""
        end = source.table.ends.get(data)
        topic_id = self._topic_id(data.topic)
        if topic_id is not None:
            try:
                last = self._last(data, end) if end is not None else None
                snapshot = source.table.snapshot(data, topic_id, last)
            except SnapshotPartError:
                if await self._grown(source.place, reached):
                    return False
                raise
            except TopicRecreatedError:
                await self._ask_for_first(data)
                raise
            if snapshot is not None:
                await self._snapshot_read(data, snapshot)
        source.told[data] = end
        return True

    async def _ask_for_first(self, data: TopicPartition) -> None:
        """Has the first snapshot of a topic taken that was created again (E8).

        Without a question it comes with the next transaction there, or after minutes (E7). Until
        then every reader would end by the same error.
        """
        try:
            async with connect_snapshots(self._connector, self._client_id, timeout_s=ASK_S) as line:
                await line.take(data)
        except StilltideError as error:
            _log.info("no first snapshot of the topic", data=str(data), why=str(error))

    async def _grown(self, place: TopicPartition, reached: EndReached) -> bool:
        """Whether the last stable offset has grown: below it compaction may have removed parts."""
        ends = await self._outages.call(lambda: self._admin.end_offsets([place], committed=True))
        return ends.get(place, reached.end_offset) > reached.end_offset
