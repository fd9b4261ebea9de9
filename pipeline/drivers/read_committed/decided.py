"""Decides the records of data partitions: the one driver of the read-committed machine.

*Source*: docs/protocols D1-D5, D7 (rules in `core.read_committed`).

*Invariants*:
- Markers and snapshots of a data partition are read from their start after the partition was added,
  at any position of the partition (D5).
- After `remove`, no record of a partition is delivered or reported.

A call handles a run of records, so that the cost of a call does not come with every record.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, TypeVar

from stilltide.pipeline.core.read_committed.effects import (
    Deliver,
    Effect,
    PauseFetching,
    ResumeFetching,
    Statistics,
    Undecided,
    Withheld,
)
from stilltide.pipeline.core.read_committed.machine import PartitionFilter
from stilltide.pipeline.drivers.read_committed.evidence import NO_IDS, EvidenceDeps, OutcomeTail
from stilltide.pipeline.drivers.read_committed.snapshot_asker import Blocked
from stilltide.pipeline.drivers.shared.txn_headers import txns_of_headers
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

P = TypeVar("P")


@dataclass(slots=True)
class _Partition(Generic[P]):
    """One data partition from `add` to `remove`, and the time since when it is blocked."""

    machine: PartitionFilter[P]
    undecided: Undecided | None = None
    undecided_since: float = 0.0


class DecidedPartitions(Generic[P]):
    """Feeds a machine for each data partition with records, and in `run` with their outcomes.

    Args:
        deps: dependencies for reading markers and snapshots.
        waiting_max: records of a partition held behind an undecided one before the partition
            joins `full`, >= 1.
        delivered: called with the visible records, in offset order for each partition.
        withheld: called with each record that is withheld although its transaction did not abort.
        undecided_changed: called when a partition is blocked, or blocked by another record.
        evidence_read: called after each batch of markers or snapshots.
    """

    def __init__(
        self,
        deps: EvidenceDeps,
        *,
        waiting_max: int,
        delivered: Callable[[TopicPartition, Deliver[P]], None],
        withheld: Callable[[TopicPartition, Withheld], None] = lambda _data, _withheld: None,
        undecided_changed: Callable[[], None] = lambda: None,
        evidence_read: Callable[[], None] = lambda: None,
    ) -> None:
        self._waiting_max = waiting_max
        self._delivered = delivered
        self._withheld = withheld
        self._undecided_changed = undecided_changed
        self._partitions: dict[TopicPartition, _Partition[P]] = {}
        self._full: set[TopicPartition] = set()
        self._evidence = OutcomeTail(
            deps, machine_of=self.machine, decided=self._decided, batch_read=evidence_read
        )

    def add(
        self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes] = NO_IDS
    ) -> None:
        """Decides these partitions, from these positions on; call `run` again afterwards.

        Args:
            positions: the position of each partition.
            topic_ids: the ids of topics to which the positions belong; see `OutcomeTail.add`.
        """
        for data, position in positions.items():
            machine = PartitionFilter[P](position=Offset(position), waiting_max=self._waiting_max)
            self._partitions[data] = _Partition(machine)
        self._evidence.add(positions, topic_ids)

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Forgets these partitions; call `run` again afterwards."""
        for data in partitions:
            self._partitions.pop(data, None)
            self._full.discard(data)
        self._evidence.remove(partitions)

    def forget_topics(self, names: Collection[str]) -> None:
        """Forgets the ids of topics that are gone; see `OutcomeTail.forget_topics`."""
        self._evidence.forget_topics(names)

    async def run(self) -> None:
        """Reads markers and snapshots until cancelled; raises as `OutcomeTail.run`."""
        await self._evidence.run()

    async def look(self) -> None:
        """Raises `TopicRecreatedError` if a topic was created again; asks the cluster now."""
        await self._evidence.look()

    def records_read(
        self,
        data: TopicPartition,
        offsets: Sequence[int],
        headers: Sequence[Headers | None],
        payloads: Sequence[P],
    ) -> None:
        """Takes a run of records of one partition, in offset order; ignored after `remove`."""
        one = self._partitions.get(data)
        if one is not None:
            txns = txns_of_headers(headers)
            self._carry_out(data, one, one.machine.records_read(offsets, txns, payloads))

    def end_reached(self, data: TopicPartition, end_offset: EndOffset) -> None:
        """Every readable record below `end_offset` was read."""
        one = self._partitions.get(data)
        if one is not None:
            self._carry_out(data, one, one.machine.end_reached(end_offset))

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
        one = self._partitions.get(data)
        return None if one is None else one.machine

    def statistics(self) -> dict[TopicPartition, Statistics]:
        """The counts of each partition since it was added."""
        return {data: one.machine.statistics for data, one in self._partitions.items()}

    def blocked(self) -> dict[TopicPartition, Blocked]:
        """The undecided record of each partition that has one, and for how long (D2)."""
        now = asyncio.get_running_loop().time()
        blocked: dict[TopicPartition, Blocked] = {}
        for data, one in self._partitions.items():
            if one.undecided is None:
                continue
            caught_up_at = self._evidence.caught_up_at(data)
            waited_s = 0.0
            if caught_up_at is not None:
                waited_s = now - max(one.undecided_since, caught_up_at)
            blocked[data] = Blocked(data, *one.undecided, waited_s)
        return blocked

    def sources(self, data: TopicPartition) -> tuple[TopicPartition, TopicPartition]:
        """The partitions that have the markers and the snapshots of a data partition."""
        return self._evidence.sources(data)

    def was_read(
        self, data: TopicPartition, markers_end: EndOffset, snapshots_end: EndOffset
    ) -> bool:
        """Whether markers and snapshots of a data partition were read up to these end offsets."""
        return self._evidence.was_read(data, markers_end, snapshots_end)

    def _decided(self, data: TopicPartition, effects: Iterable[Effect[P]]) -> None:
        self._carry_out(data, self._partitions[data], effects)

    def _carry_out(
        self, data: TopicPartition, one: _Partition[P], effects: Iterable[Effect[P]]
    ) -> None:
        for effect in effects:
            match effect:
                case Deliver():
                    self._delivered(data, effect)
                case PauseFetching():
                    self._full.add(data)
                case ResumeFetching():
                    self._full.discard(data)
                case Withheld():
                    self._withheld(data, effect)
        undecided = one.machine.undecided
        if undecided != one.undecided:
            one.undecided = undecided
            one.undecided_since = asyncio.get_running_loop().time()
            self._undecided_changed()
