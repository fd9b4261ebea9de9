"""Tails the marker partitions that serve the assigned data partitions.

*Source*: docs/protocols D5, C4.

*Invariants*: after a data partition was added, its markers are read from the first one that its
snapshot has not absorbed (E9). Other data partitions then get the same markers again, which is
harmless (C4). Markers that were trimmed before they were read do no harm either: a snapshot has
absorbed them, or the reader waits for one (D5).

No `TopicFeed`: a trim is no gap here but a reason to go on at the log start, and markers are taken
in batches, as they come, on the way of every record to an application.

Refuses: to read past a damaged marker of a data partition that is served, unless a later record has
the same key (B10).
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import EndReached, Record
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.passed_over import pass_over
from stilltide.schemas.coordinator.markers import Marker, decode, decode_key, is_barrier
from stilltide.schemas.errors import DecodeError, ForeignKeyError, StilltideError, placed_each
from stilltide.schemas.topics import TXN_MARKERS, system_partition
from stilltide.schemas.values import Offset, TopicPartition


class MarkerTail:
    """Reads markers in `run`; after `add` and `remove`, cancel `run` and call it again.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster.
        outages: repeats calls while the cluster is away.
        client_id: name of the reader at the brokers.
        partition_count: number of partitions of txn-markers.
        absorbed_to: finds the offset below which snapshots that are passed on have absorbed every
            marker of some data partitions.
        marker_read: called with each marker; its errors stop the reading.
        batch_read: called after each batch of markers.
    """

    def __init__(
        self,
        connector: Connector,
        admin: LogAdmin,
        outages: OutageGuard,
        *,
        client_id: str,
        partition_count: int,
        absorbed_to: Callable[[Iterable[TopicPartition]], Awaitable[Offset]],
        marker_read: Callable[[Marker], None],
        batch_read: Callable[[], None],
    ) -> None:
        self._connector = connector
        self._admin = admin
        self._outages = outages
        self._client_id = client_id
        self._partition_count = partition_count
        self._absorbed_to = absorbed_to
        self._marker_read = marker_read
        self._batch_read = batch_read
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
        return TopicPartition(TXN_MARKERS, system_partition(data, self._partition_count))

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
        reader = self._connector.reader(self._client_id, committed=False)  # B10
        try:
            await reader.assign({source: self._positions[source] for source in sources})
            while True:
                items = await self._read(reader, sources)
                with placed_each(items, StilltideError) as each:
                    for item in each:
                        try:
                            self._item_read(item)
                        except DecodeError as error:
                            await self._not_decoded(item, error)
                self._batch_read()
        finally:
            await reader.close()

    async def _read(
        self, reader: LogReader, sources: Collection[TopicPartition]
    ) -> Sequence[Record | EndReached]:
        """The next items; continues at a log start that has passed the position."""
        while True:
            try:
                return await self._outages.call(reader.read, may_rest=True)
            except OffsetOutOfRangeError:
                before = dict(self._positions)
                await self._move_up(sources)
                if before == self._positions:
                    raise
                await reader.assign({source: self._positions[source] for source in sources})

    async def _begin(self) -> None:
        """Sets the positions of marker partitions that serve data partitions added since."""
        added: defaultdict[TopicPartition, list[TopicPartition]] = defaultdict(list)
        for data, source in self._served_by.items():
            if source not in self._positions:
                added[source].append(data)
        begins = {source: await self._absorbed_to(served) for source, served in added.items()}
        self._positions.update(begins)
        await self._move_up(begins)

    async def _move_up(self, sources: Collection[TopicPartition]) -> None:
        """Moves positions that lie below the log starts."""
        starts = await self._outages.call(lambda: self._admin.start_offsets(list(sources)))
        for source in sources:
            if source not in starts:
                raise FatalError(
                    "a partition of the marker topic does not exist",
                    hint="was the topic deleted? without it no outcome is known",
                    topic=source.topic,
                    partition=source.partition,
                )
            self._positions[source] = max(starts[source], self._positions[source])

    async def _not_decoded(self, item: Record | EndReached, error: DecodeError) -> None:
        """Passes over a record that says nothing of the data partitions that are served (B10)."""
        assert isinstance(item, Record)
        if isinstance(error, ForeignKeyError) or self._concerns(item):
            await pass_over(self._connector, item, error)
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
            self._marker_read(marker)
        self._positions[source] = Offset(item.offset + 1)
