"""Reads markers and snapshots at the same time, and feeds them to the machines.

*Source*: docs/protocols C13, D2, D4, D5, E8.

*Invariants*: after a data partition was added, its snapshot is read again, and its markers from the
first one on that the snapshot has not absorbed (E9); a record is given up as lost only after every
marker that existed when the snapshot was read has been read, too. The end offset of a commit marker
counts only for the topic id that the marker carries.

*Refuses*: to read on after a topic was created again.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import METADATA_MAX_AGE_S, Connector
from stilltide.pipeline.core.read_committed.effects import Effect
from stilltide.pipeline.core.read_committed.machine import PartitionFilter
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.read_committed.marker_tail import MarkerTail
from stilltide.pipeline.drivers.read_committed.snapshot_tail import SnapshotTail
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.drivers.shared.topic_watch import TopicWatch
from stilltide.pipeline.errors import MarkerConflictError
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.values import EndOffset, TopicPartition

Decided = Callable[[TopicPartition, list[Effect[Any]]], None]

NO_IDS: Mapping[str, bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EvidenceDeps:
    """Dependencies for reading markers and snapshots.

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


class OutcomeTail:
    """Feeds machines in `run`; after `add` and `remove`, cancel `run` and call it again.

    Args:
        deps: dependencies for reading.
        machine_of: finds the machine of a data partition; None: not assigned any more.
        decided: called with the effects of a machine.
        batch_read: called after each batch of markers or snapshots.
    """

    def __init__(
        self,
        deps: EvidenceDeps,
        *,
        machine_of: Callable[[TopicPartition], PartitionFilter[Any] | None],
        decided: Decided,
        batch_read: Callable[[], None],
    ) -> None:
        self._admin = deps.admin
        self._outages = deps.outages
        self._machine_of = machine_of
        self._decided = decided
        self._batch_read = batch_read
        self._assigned: set[TopicPartition] = set()
        self._given: set[str] = set()  # topics whose ids the caller has named
        self._watch = TopicWatch(deps.admin, deps.outages, deps.metadata_max_age_s)
        self._marker_ends: dict[TopicPartition, EndOffset] = {}
        self._snapshots = SnapshotTail(
            deps.connector,
            deps.admin,
            deps.outages,
            client_id=f"{deps.client_id}-snapshots",
            partition_count=deps.snapshot_partitions,
            topic_id=self._watch.topic_id,
            last=self._last,
            snapshot_read=self._snapshot_read,
            batch_read=batch_read,
        )
        self._markers = MarkerTail(
            deps.connector,
            deps.admin,
            deps.outages,
            client_id=f"{deps.client_id}-markers",
            partition_count=deps.marker_partitions,
            absorbed_to=self._snapshots.absorbed_to,
            marker_read=self._marker_read,
            batch_read=self._marker_batch_read,
        )

    def add(
        self, partitions: Iterable[TopicPartition], topic_ids: Mapping[str, bytes] = NO_IDS
    ) -> None:
        """Reads snapshots of these data partitions, and the markers not absorbed by them.

        Args:
            partitions: the data partitions.
            topic_ids: the ids of topics to which the positions of the reader belong; the id of
                another topic is that of the next `run`.
        """
        partitions = list(partitions)
        self._assigned.update(partitions)
        self._given.update(topic_ids)
        self._watch.fix(topic_ids)
        self._markers.add(partitions)
        self._snapshots.add(partitions)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops reading for these data partitions."""
        partitions = list(partitions)
        self._assigned.difference_update(partitions)
        left = {data.topic for data in self._assigned} | self._given
        self._watch.forget({data.topic for data in partitions} - left)
        self._markers.remove(partitions)
        self._snapshots.remove(partitions)
        for data in partitions:
            self._marker_ends.pop(data, None)

    def forget_topics(self, names: Collection[str]) -> None:
        """Forgets the ids of topics that are gone: another topic may come under the name."""
        self._given.difference_update(names)
        self._watch.forget(names)

    def caught_up_at(self, data: TopicPartition) -> float | None:
        """Loop time at which all markers and snapshots had been read once; None: not yet."""
        markers, snapshots = self._markers.caught_up_at(data), self._snapshots.caught_up_at(data)
        return None if markers is None or snapshots is None else max(markers, snapshots)

    def sources(self, data: TopicPartition) -> tuple[TopicPartition, TopicPartition]:
        """The partitions that have the markers and the snapshots of a data partition."""
        return self._markers.source(data), self._snapshots.source(data)

    def was_read(
        self, data: TopicPartition, markers_end: EndOffset, snapshots_end: EndOffset
    ) -> bool:
        """Whether markers and snapshots of a data partition were read up to these end offsets."""
        markers, snapshots = self._markers.position(data), self._snapshots.position(data)
        if markers is None or snapshots is None:
            return False
        return markers >= markers_end and snapshots >= snapshots_end

    async def run(self) -> None:
        """Reads until cancelled; raises as `MarkerTail.run` and `SnapshotTail.run`.

        Raises:
            TopicRecreatedError: a topic was deleted and created again (C13).
        """
        await self.look()
        works = (self._markers, self._snapshots, self._watch)
        tails = [asyncio.create_task(it.run()) for it in works]
        try:
            await asyncio.gather(*tails)
        finally:
            for tail in tails:
                tail.cancel()
            await asyncio.gather(*tails, return_exceptions=True)

    async def look(self) -> None:
        """Raises `TopicRecreatedError` if a topic was created again; asks the cluster now."""
        if self._assigned:
            await self._watch.look({data.topic for data in self._assigned})

    def _marker_read(self, marker: Marker) -> None:
        machine = self._machine_of(marker.data)
        if machine is None:
            return
        topic_id = self._watch.topic_id(marker.data.topic)
        if marker.committed and marker.topic_id not in (b"", topic_id):
            # The offsets are of another topic. Batch reads do not use them either; the snapshot
            # writer counts such a commit as one that ends at the next probe (E8).
            self._watch.doubt(marker.topic_id)
            return
        try:
            effects = machine.marker_read(
                marker.txn.to_bytes(), committed=marker.committed, end_offset=marker.end_offset
            )
        except MarkerConflictError as error:
            error.detail = f"on {marker.data}: {error.detail}"
            raise
        if effects:
            self._decided(marker.data, effects)

    def _marker_batch_read(self) -> None:
        for data in list(self._marker_ends):
            self._give_up(data)
        self._batch_read()

    def _last(self, data: TopicPartition, end: SnapshotEnd) -> Snapshot | None:
        """The snapshot in use, if the new one replaces it at once and can share its ids."""
        machine = self._machine_of(data)
        if machine is None or end.floors_valid_from > machine.position:
            return None
        last = machine.snapshot
        assert last is None or isinstance(last, Snapshot)
        return last

    async def _snapshot_read(self, data: TopicPartition, snapshot: Snapshot) -> None:
        machine = self._machine_of(data)
        if machine is None:
            return
        self._decided(data, machine.snapshot_read(snapshot))
        if machine.newer_snapshot is None:
            self._marker_ends.pop(data, None)
            return
        source = self._markers.source(data)
        ends = await self._outages.call(lambda: self._admin.end_offsets([source]))
        if source in ends and self._machine_of(data) is machine:
            self._marker_ends[data] = ends[source]
            self._give_up(data)

    def _give_up(self, data: TopicPartition) -> None:
        """Reports records that left the log undecided, once the markers were read (D4)."""
        position, machine = self._markers.position(data), self._machine_of(data)
        if machine is not None and position is not None and position >= self._marker_ends[data]:
            del self._marker_ends[data]
            self._decided(data, machine.markers_read_to_end())
