"""Tails the logs of markers and snapshots that serve the assigned data partitions.

*Source*: docs/protocols C4, C13, D4, D5, E4, E8, E9.

*Invariants*:
- After a data partition was added, its markers are read from the first one that its snapshot has
  not absorbed (E9). Other data partitions then get the same markers again, which is harmless (C4).
  Markers that were trimmed before they were read do no harm either: a snapshot has absorbed them,
  or the reader waits for one (D5).
- A snapshot is passed on only if it is complete as of a last stable offset, and if it belongs to
  the topic id at which the data partition is read.

No `TopicFeed`: a trim of markers is no gap here but a reason to go on at the log start, and markers
are taken in batches, as they come, on the way of every record to an application; a snapshot is
passed on at each end of its partition, while a stranger's open transaction may hide later records
for as long as it likes.

Refuses: to read past a damaged marker of a data partition that is served, unless a later record has
the same key (B10); a snapshot with a gap that further reading does not fill, and one of a former
topic.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin, TopicDescription
from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S, Connector, closing
from stilltide.connectors.ports.readers import EndReached, LogReader, Record
from stilltide.pipeline.core.snapshots.recovery import Snapshot, SnapshotTable
from stilltide.pipeline.core.topic_table import KnownTopic, TopicRecreated, TopicTable
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import pass_over
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.errors import SnapshotPartError, TopicRecreatedError, topic_recreated
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.markers import Marker, decode, decode_key, is_barrier
from stilltide.schemas.errors import DecodeError, ForeignKeyError, StilltideError, placed_each
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

_HINT = "read the topic that exists now from its start, with a new subscription"


class TopicWatch:
    """Watches topics in `run`, until cancelled.

    Args:
        admin: the cluster.
        outages: repeats calls while the cluster is away.
        max_age_s: longest time between two looks at the topics, > 0.
    """

    def __init__(self, admin: LogAdmin, outages: OutageGuard, max_age_s: float) -> None:
        self._admin = admin
        self._outages = outages
        self._table = TopicTable(max_age_s * 1000)
        self._wake = asyncio.Event()
        self._doubted: set[bytes] = set()

    def fix(self, topic_ids: Mapping[str, bytes]) -> None:
        """Fixes the ids of topics that were just described; known ids stay."""
        self._table.described({name: KnownTopic(it, 0) for name, it in topic_ids.items()})

    def forget(self, names: Collection[str]) -> None:
        """Watches these topics no longer."""
        self._table.forget(names)

    def topic_id(self, name: str) -> bytes | None:
        """The fixed id of a topic; None: not fixed yet, since the topic did not exist."""
        known = self._table.get(name)
        return None if known is None else known.topic_id

    def doubt(self, topic_id: bytes) -> None:
        """Has `run` look soon: a record belongs to another id, which may be that of a new topic.

        One look answers for all records of an id; most of them are of a former topic.
        """
        if topic_id not in self._doubted:
            self._doubted.add(topic_id)
            self._wake.set()

    async def look(self, names: Collection[str] = ()) -> None:
        """Compares the ids of all watched topics with those of the cluster; fixes new `names`.

        Raises:
            TopicRecreatedError: a topic has another id than the fixed one (C13).
            UnavailableError: the cluster stayed away.
        """
        asked = sorted({*self._table.names, *names})
        described = await self._outages.call(self._admin.describe_topics, asked)
        for change in self._table.described(
            {name: KnownTopic(it.topic_id, it.partition_count) for name, it in described.items()}
        ):
            if isinstance(change, TopicRecreated):
                raise topic_recreated(change.topic, change.before, change.now, hint=_HINT)

    async def run(self) -> None:
        """Looks whenever the age is reached, and after `doubt`; raises as `look`."""
        now_s = asyncio.get_running_loop().time
        while True:
            self._table.looked(now_s() * 1000)
            deadline_ms = self._table.deadline_ms
            with suppress(TimeoutError):
                async with asyncio.timeout_at(None if deadline_ms is None else deadline_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            await self.look()


ASK_S = 5.0
"""Longest wait for the first snapshot of a topic that was created again."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OutcomeLogs:
    """Where the outcomes of a cluster's transactions are, and how to read them.

    Attributes:
        connector: the cluster.
        admin: admin client of the same cluster; its maker closes it.
        outages: repeats calls while the cluster is away.
        client_id: prefix of the clients' names at the brokers.
        marker_partitions: number of partitions of txn-markers.
        snapshot_partitions: number of partitions of txn-snapshots.
        metadata_max_age_s: longest time until a topic that was created again is noticed, > 0.
    """

    connector: Connector
    admin: LogAdmin
    outages: OutageGuard
    client_id: str
    marker_partitions: int
    snapshot_partitions: int
    metadata_max_age_s: float = METADATA_MAX_AGE_S

    @classmethod
    def of(
        cls,
        connector: Connector,
        admin: LogAdmin,
        outages: OutageGuard,
        client_id: str,
        *,
        topics: Mapping[str, TopicDescription],
        metadata_max_age_s: float = METADATA_MAX_AGE_S,
    ) -> "OutcomeLogs":
        """Those of a cluster whose topics of markers and snapshots are described."""
        markers, snapshots = (topics[it].partition_count for it in (TXN_MARKERS, TXN_SNAPSHOTS))
        return cls(connector, admin, outages, client_id, markers, snapshots, metadata_max_age_s)


class OutcomeListener(Protocol):
    """Takes what the tails read."""

    def marker_read(self, marker: Marker) -> None:
        """Takes a marker; an error stops the reading."""
        ...

    def outcomes_read(self) -> None:
        """A batch of markers, or of records of snapshots, was read."""
        ...

    def last_snapshot(self, data: TopicPartition, end: SnapshotEnd) -> Snapshot | None:
        """The snapshot in use, whose ids a new snapshot of the data partition may share."""
        ...

    async def snapshot_read(self, data: TopicPartition, snapshot: Snapshot) -> None:
        """Takes a new snapshot, and again after a new `run`; an error stops the reading."""
        ...


class _Source:
    """A partition of txn-snapshots, and the data partitions for which it is read."""

    def __init__(self, place: TopicPartition, served: set[TopicPartition]) -> None:
        self.place = place
        self.served = served
        self.table = SnapshotTable(place.partition, only=served)
        self.reported: dict[TopicPartition, SnapshotEnd | None] = {}

    def unread(self) -> list[TopicPartition]:
        """The data partitions whose snapshot has changed since it was last passed on, or is broken.

        Parts without an end are broken: `SnapshotTable.snapshot` says so.
        """
        ends, broken = self.table.ends, self.table.without_end()
        changed = [data for data in self.served if ends.get(data) is not self.reported.get(data)]
        return changed + [data for data in broken if data not in changed]


class SnapshotTail:
    """Reads snapshots in `run`; after `add` and `remove`, cancel `run` and call it again.

    Args:
        logs: where the snapshots are.
        listener: takes the snapshots.
        topics: knows the id at which a topic is read.
    """

    def __init__(self, logs: OutcomeLogs, listener: OutcomeListener, topics: TopicWatch) -> None:
        self._logs = logs
        self._listener = listener
        self._topics = topics
        self._client_id = f"{logs.client_id}-snapshots"
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
        return TopicPartition(TXN_SNAPSHOTS, system_partition(data, self._logs.snapshot_partitions))

    def position(self, data: TopicPartition) -> EndOffset | None:
        """The end offset of the snapshots passed on in this run; None: none yet."""
        return self._read_to.get(self.source(data))

    async def absorbed_to(self, partitions: Iterable[TopicPartition]) -> Offset:
        """D5: the offset from which the markers of these data partitions are read.

        Snapshots have absorbed every marker below (E9). Waits until `run` has passed on the
        snapshots that were there when it began.
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
        reader = self._logs.connector.reader(self._client_id)
        try:
            await reader.assign(dict.fromkeys(sources, Offset(0)))
            while True:
                for item in await self._logs.outages.read(reader.read):
                    await self._item_read(sources, item)
                self._listener.outcomes_read()
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
                await pass_over(self._logs.connector, item, error)
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
        topic_id = self._topics.topic_id(data.topic)
        if topic_id is not None:
            try:
                last = self._listener.last_snapshot(data, end) if end is not None else None
                snapshot = source.table.snapshot(data, topic_id, last)
            except SnapshotPartError:
                if await self._grown(source.place, reached):
                    return False
                raise
            except TopicRecreatedError:
                await self._ask_for_first(data)
                raise
            if snapshot is not None:
                await self._listener.snapshot_read(data, snapshot)
        source.reported[data] = end
        return True

    async def _ask_for_first(self, data: TopicPartition) -> None:
        """Has the first snapshot of a topic taken that was created again (E8).

        Without a question it comes with the next transaction there, or after minutes (E7). Until
        then every reader would end by the same error.
        """
        try:
            async with SnapshotLine(self._logs.connector, self._client_id, timeout_s=ASK_S) as line:
                await line.take(data)
        except StilltideError as error:
            _log.info("no first snapshot of the topic", data=str(data), why=str(error))

    async def _grown(self, place: TopicPartition, reached: EndReached) -> bool:
        """Whether the last stable offset has grown: below it compaction may have removed parts."""
        ends = await self._logs.outages.call(self._logs.admin.end_offsets, [place], committed=True)
        return ends.get(place, reached.end_offset) > reached.end_offset


class MarkerTail:
    """Reads markers in `run`; after `add` and `remove`, cancel `run` and call it again.

    Args:
        logs: where the markers are.
        listener: takes the markers.
        snapshots: tells below which offset snapshots have absorbed every marker.
    """

    def __init__(
        self, logs: OutcomeLogs, listener: OutcomeListener, snapshots: SnapshotTail
    ) -> None:
        self._logs = logs
        self._listener = listener
        self._snapshots = snapshots
        self._served_by: dict[TopicPartition, TopicPartition] = {}
        self._positions: dict[TopicPartition, Offset] = {}
        self._caught_up_at: dict[TopicPartition, float] = {}

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Adds data partitions, whose markers `run` begins to read."""
        for data in partitions:
            source = self._served_by[data] = self.source(data)
            self._positions.pop(source, None)
            self._caught_up_at.pop(source, None)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading markers for these data partitions."""
        for data in partitions:
            self._served_by.pop(data, None)
        needed = set(self._served_by.values())
        for source in set(self._positions) - needed:
            del self._positions[source]
        for source in set(self._caught_up_at) - needed:
            del self._caught_up_at[source]

    def source(self, data: TopicPartition) -> TopicPartition:
        """The marker partition that serves a data partition."""
        return TopicPartition(TXN_MARKERS, system_partition(data, self._logs.marker_partitions))

    def position(self, data: TopicPartition) -> Offset | None:
        """The end offset of the data partition's markers read or trimmed; None: not begun."""
        return self._positions.get(self.source(data))

    def caught_up_at(self, data: TopicPartition) -> float | None:
        """Loop time at which all markers of a data partition had been read once; None: not yet."""
        source = self._served_by.get(data)
        return None if source is None else self._caught_up_at.get(source)

    async def run(self) -> None:
        """Reads until cancelled.

        Raises:
            DecodeError: a marker is damaged; names its topic, partition and offset.
            MarkerConflictError: two markers contradict each other; names the later one's place.
            UnavailableError: the cluster stayed away.
        """
        sources = sorted(set(self._served_by.values()))
        if not sources:
            return
        await self._begin()
        async with closing(
            self._logs.connector.reader(f"{self._logs.client_id}-markers", committed=False)
        ) as reader:
            await reader.assign({source: self._positions[source] for source in sources})
            while True:
                items = await self._read(reader, sources)
                with placed_each(items, StilltideError) as each:
                    for item in each:
                        try:
                            self._item_read(item)
                        except DecodeError as error:
                            await self._not_decoded(item, error)
                self._listener.outcomes_read()

    async def _read(
        self, reader: LogReader, sources: Collection[TopicPartition]
    ) -> Sequence[Record | EndReached]:
        """The next items; continues at a log start that has passed the position."""
        while True:
            try:
                return await self._logs.outages.read(reader.read)
            except OffsetOutOfRangeError:
                before = dict(self._positions)
                await self._move_up(sources)
                if before == self._positions:
                    raise
                await reader.assign({source: self._positions[source] for source in sources})

    async def _begin(self) -> None:
        """D5: sets the positions of marker partitions that serve data partitions added since."""
        added: defaultdict[TopicPartition, list[TopicPartition]] = defaultdict(list)
        for data, source in self._served_by.items():
            if source not in self._positions:
                added[source].append(data)
        begins = {
            source: await self._snapshots.absorbed_to(served) for source, served in added.items()
        }
        self._positions.update(begins)
        await self._move_up(begins)

    async def _move_up(self, sources: Collection[TopicPartition]) -> None:
        """Moves positions that lie below the log starts."""
        starts = await self._logs.outages.call(self._logs.admin.start_offsets, list(sources))
        for source in sources:
            if source not in starts:
                raise FatalError(
                    "a partition of the marker topic does not exist",
                    hint="was the topic deleted? without it no outcome is known",
                    data=source,
                )
            self._positions[source] = max(starts[source], self._positions[source])

    async def _not_decoded(self, item: Record | EndReached, error: DecodeError) -> None:
        """Passes over a record that says nothing of the data partitions that are served (B10)."""
        assert isinstance(item, Record)
        if isinstance(error, ForeignKeyError) or self._concerns(item):
            await pass_over(self._logs.connector, item, error)
        self._positions[item.data] = Offset(item.offset + 1)

    def _concerns(self, record: Record) -> bool:
        """Whether a record is a marker of a data partition that is served."""
        if is_barrier(record.key):
            return False  # barriers are for snapshot writers
        return decode_key(record.key)[0] in self._served_by

    def _item_read(self, item: Record | EndReached) -> None:
        source = item.data
        if isinstance(item, EndReached):
            if source not in self._caught_up_at:
                self._caught_up_at[source] = asyncio.get_running_loop().time()
            self._positions[source] = Offset(item.end_offset)
            return
        marker = decode(item.key, item.value)
        if isinstance(marker, Marker):  # barriers are for snapshot writers
            if marker.committed and marker.end_offset is None:
                raise DecodeError("a commit marker without end offset")
            self._listener.marker_read(marker)
        self._positions[source] = Offset(item.offset + 1)
