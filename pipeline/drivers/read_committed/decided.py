"""Decides the records of data partitions: the only driver of the read-committed machine.

*Source*: docs/protocols C13, D2, D4, D5, D7, E8 (rules in `core.read_committed`).

*Refuses*: to read on after a topic was created again.

*Invariants*:
- After a data partition was added, at any position, its snapshots are read from their start, and
  its markers from the first one that the snapshots have not absorbed (D5, by `outcome_tails`). A
  record is given up as lost only after every marker that existed when the snapshot was read has
  been read, too.
- The end offset of a commit marker counts only for the topic id that the marker carries (C13).
- After `remove`, no record of a partition is delivered or reported.

A call handles a run of records, so that the cost of a call does not come with every record.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from stilltide.pipeline.core.read_committed.machine import (
    Deliver,
    Effect,
    PartitionFilter,
    PauseFetching,
    ResumeFetching,
    Undecided,
    Withheld,
)
from stilltide.pipeline.core.snapshots.recovery import Snapshot
from stilltide.pipeline.drivers.read_committed.outcome_tails import (
    MarkerTail,
    OutcomeLogs,
    SnapshotTail,
    TopicWatch,
)
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.drivers.shared.txn_headers import txns_of_headers
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.pipeline.errors import MarkerConflictError
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.coordinator.markers import Marker
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.headers import Headers
from stilltide.schemas.retry import UNDECIDED
from stilltide.schemas.snapshots.snapshots import SnapshotEnd
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId

P = TypeVar("P")

NO_IDS: Mapping[str, bytes] = MappingProxyType({})

_log = get_logger(__name__)


class Blocked(NamedTuple):
    """An undecided record at which the reader of a partition waits (D2).

    `waited_s` counts from the time when all earlier markers and snapshots were read; 0 until then.
    """

    data: TopicPartition
    offset: Offset
    txn: TxnId
    waited_s: float


@dataclass(slots=True)
class _Decided(Generic[P]):
    """One data partition from `add` to `remove`, and the time since when it is blocked."""

    machine: PartitionFilter[P]
    undecided: Undecided | None = None
    undecided_since: float = 0.0


class DecisionReader(Protocol[P]):
    """What a reader learns of its data partitions."""

    def delivered(self, data: TopicPartition, batch: Deliver[P], /) -> None:
        """Takes visible records, in offset order for each partition."""
        ...

    def withheld(self, data: TopicPartition, withheld: Withheld, /) -> None:
        """A record is withheld although its transaction did not abort."""
        ...

    def undecided_changed(self) -> None:
        """A partition is blocked, or blocked by another record."""
        ...

    def evidence_read(self) -> None:
        """A batch of markers or snapshots was read."""
        ...


class DecidedPartitions(Generic[P]):
    """Feeds a machine for each data partition with records, and in `run` with their outcomes.

    Args:
        logs: where markers and snapshots are.
        reader: told of what is decided.
        waiting_max: records of a partition held behind an undecided record before the partition
            joins `full`, >= 1.
    """

    def __init__(self, logs: OutcomeLogs, reader: DecisionReader[P], *, waiting_max: int) -> None:
        self.logs = logs
        self._reader = reader
        self._waiting_max = waiting_max
        self._partitions: dict[TopicPartition, _Decided[P]] = {}
        self._full: set[TopicPartition] = set()
        self._given: set[str] = set()  # topics whose ids the caller has named
        self._watch = TopicWatch(logs.admin, logs.outages, logs.metadata_max_age_s)
        self._marker_ends: dict[TopicPartition, EndOffset] = {}
        self._snapshots = SnapshotTail(logs, self, self._watch)
        self._markers = MarkerTail(logs, self, self._snapshots)

    def add(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] = NO_IDS
    ) -> None:
        """Decides these partitions, from these positions on; call `run` again afterwards.

        Args:
            positions: the position of each partition.
            topic_ids: the ids of topics to which the positions belong; the id of another topic is
                that of the next `run`.
        """
        for data, position in positions.items():
            machine = PartitionFilter[P](position=Offset(position), waiting_max=self._waiting_max)
            self._partitions[data] = _Decided(machine)
        self._given.update(topic_ids)
        self._watch.fix(topic_ids)
        self._markers.add(positions)
        self._snapshots.add(positions)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets these partitions; call `run` again afterwards."""
        for data in partitions:
            self._partitions.pop(data, None)
            self._full.discard(data)
            self._marker_ends.pop(data, None)
        left = {data.topic for data in self._partitions} | self._given
        self._watch.forget({data.topic for data in partitions} - left)
        self._markers.remove(partitions)
        self._snapshots.remove(partitions)

    def records_read(
        self,
        data: TopicPartition,
        offsets: Sequence[int],
        headers: Sequence[Headers | None],
        payloads: Sequence[P],
    ) -> None:
        """Takes a run of records of one partition, in offset order; ignored after `remove`."""
        partition = self._partitions.get(data)
        if partition is not None:
            txns = txns_of_headers(headers)
            self._carry_out(data, partition.machine.records_read(offsets, txns, payloads))

    def end_reached(self, data: TopicPartition, end_offset: EndOffset) -> None:
        """Every readable record below `end_offset` was read."""
        partition = self._partitions.get(data)
        if partition is not None:
            self._carry_out(data, partition.machine.end_reached(end_offset))

    @property
    def partitions(self) -> AbstractSet[TopicPartition]:
        """The partitions that were added and not removed."""
        return self._partitions.keys()

    @property
    def full(self) -> AbstractSet[TopicPartition]:
        """The partitions whose fetching must pause (D7)."""
        return self._full

    def machine(self, data: TopicPartition) -> PartitionFilter[P] | None:
        """The machine of a partition; None: not added, or removed."""
        partition = self._partitions.get(data)
        return None if partition is None else partition.machine

    def blocked(self) -> dict[TopicPartition, Blocked]:
        """The undecided record of each partition that has one, and for how long (D2)."""
        now = asyncio.get_running_loop().time()
        blocked: dict[TopicPartition, Blocked] = {}
        for data, partition in self._partitions.items():
            if partition.undecided is None:
                continue
            markers_at = self._markers.caught_up_at(data)
            snapshots_at = self._snapshots.caught_up_at(data)
            waited_s = 0.0
            if markers_at is not None and snapshots_at is not None:
                waited_s = now - max(partition.undecided_since, markers_at, snapshots_at)
            blocked[data] = Blocked(data, *partition.undecided, waited_s)
        return blocked

    def forget_topics(self, names: Collection[str]) -> None:
        """Forgets the ids of topics that are gone: another topic may come under the name."""
        self._given.difference_update(names)
        self._watch.forget(names)

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
            await cancelled(*tails)

    async def look(self) -> None:
        """Raises `TopicRecreatedError` if a topic was created again; asks the cluster now."""
        if self._partitions:
            await self._watch.look({data.topic for data in self._partitions})

    def marker_read(self, marker: Marker) -> None:
        """Takes the outcome of a transaction."""
        machine = self.machine(marker.data)
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
            self._carry_out(marker.data, effects)

    def outcomes_read(self) -> None:
        """A batch of markers, or of records of snapshots, was read."""
        for data in list(self._marker_ends):
            self._give_up(data)
        self._reader.evidence_read()

    def last_snapshot(self, data: TopicPartition, end: SnapshotEnd) -> Snapshot | None:
        """The snapshot in use, if the new one replaces it at once and can share its ids."""
        machine = self.machine(data)
        if machine is None or end.floors_valid_from > machine.position:
            return None
        last = machine.snapshot
        assert last is None or isinstance(last, Snapshot)
        return last

    async def snapshot_read(self, data: TopicPartition, snapshot: Snapshot) -> None:
        """Takes a snapshot; older records without an outcome are given up later (D4)."""
        machine = self.machine(data)
        if machine is None:
            return
        self._carry_out(data, machine.snapshot_read(snapshot))
        if machine.newer_snapshot is None:
            self._marker_ends.pop(data, None)
            return
        source = self._markers.source(data)
        ends = await self.logs.outages.call(self.logs.admin.end_offsets, [source])
        if source in ends and self.machine(data) is machine:
            self._marker_ends[data] = ends[source]
            self._give_up(data)

    def _give_up(self, data: TopicPartition) -> None:
        """Reports records that left the log undecided, once the markers were read (D4)."""
        position, machine = self._markers.position(data), self.machine(data)
        if machine is not None and position is not None and position >= self._marker_ends[data]:
            del self._marker_ends[data]
            self._carry_out(data, machine.markers_read_to_end())

    def _carry_out(self, data: TopicPartition, effects: Iterable[Effect[P]]) -> None:
        partition = self._partitions[data]
        for effect in effects:
            match effect:
                case Deliver():
                    self._reader.delivered(data, effect)
                case PauseFetching():
                    self._full.add(data)
                case ResumeFetching():
                    self._full.discard(data)
                case Withheld():
                    self._reader.withheld(data, effect)
        undecided = partition.machine.undecided
        if undecided != partition.undecided:
            partition.undecided = undecided
            partition.undecided_since = asyncio.get_running_loop().time()
            self._reader.undecided_changed()


@dataclass(slots=True)
class _SnapshotAsked:
    offset: Offset
    again_at_s: float
    asked: int = 1


class SnapshotAsker:
    """Checks the blocked partitions regularly in `run`, until cancelled.

    Args:
        decided: knows the blocked partitions and their undecided records; its cluster's snapshot
            writers are asked, by a connection that is open only during a request.
        after_s: time that a record is undecided before the first request, > 0; also the longest
            wait for an answer, and the first delay before the next request for the same record.
    """

    def __init__(self, decided: DecidedPartitions[Any], *, after_s: float) -> None:
        self._decided = decided
        self._after_s = after_s
        self._retry = UNDECIDED.scaled(after_s)
        self._asked: dict[TopicPartition, _SnapshotAsked] = {}

    async def run(self) -> None:
        """Requests snapshots until cancelled."""
        logs = self._decided.logs
        while True:
            await asyncio.sleep(self._after_s / 4)
            due = self.due(self._decided.blocked(), asyncio.get_running_loop().time())
            if not due:
                continue
            try:
                async with SnapshotLine(
                    logs.connector, f"{logs.client_id}-asks", timeout_s=self._after_s
                ) as line:
                    await asyncio.gather(*(self._ask(line, data) for data in due))
            except StilltideError as error:
                self._report(due, error)

    def due(self, blocked: Mapping[TopicPartition, Blocked], now_s: float) -> list[TopicPartition]:
        """The partitions whose request is due at this loop time; the request counts as sent."""
        for data in self._asked.keys() - blocked.keys():
            del self._asked[data]
        due: list[TopicPartition] = []
        for data, there in blocked.items():
            asked = self._asked.get(data)
            if asked is None or asked.offset != there.offset:
                if there.waited_s >= self._after_s:
                    self._asked[data] = _SnapshotAsked(there.offset, now_s + self._retry.wait_s(1))
                    due.append(data)
            elif now_s >= asked.again_at_s:
                asked.asked += 1
                asked.again_at_s = now_s + self._retry.wait_s(asked.asked)
                due.append(data)
        return due

    async def _ask(self, line: SnapshotLine, data: TopicPartition) -> None:
        try:
            await line.take(data)
        except StilltideError as error:
            self._report([data], error)

    def _report(self, partitions: Collection[TopicPartition], error: StilltideError) -> None:
        _log.warning(
            "no snapshot for an undecided record; asking again later",
            partitions=[str(data) for data in partitions],
            error=str(error),
        )
