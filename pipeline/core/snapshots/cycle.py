"""One probe of a snapshot writer, and the write that follows it.

*Source*: docs/protocols E1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.schemas.coordinator.barriers import Barrier, OpenTransactions, Probe
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(slots=True)
class Cycle:
    """How far a probe has come; its steps follow one another.

    Attributes:
        probe: its name.
        partitions: what is to be written.
        requests: those it serves.
        retry_ms: when the step is taken again that nobody answered.
        found: the data partitions, read first; None until then.
        waiting: coordinators whose barriers have not been read.
        barriers: those that have.
        end_asked: the marker partition's end is being read, after the last barrier.
        marker_end: what it was; markers are read up to there.
        covered_to: K* once the write that is under way is durable; None before.
    """

    probe: Probe
    partitions: tuple[TopicPartition, ...]
    requests: dict[int, TopicPartition]
    retry_ms: int
    found: Mapping[TopicPartition, DataPosition] | None = None
    waiting: set[int] = field(default_factory=set[int])
    barriers: list[Barrier] = field(default_factory=list[Barrier])
    end_asked: bool = False
    marker_end: EndOffset | None = None
    covered_to: Offset | None = None

    @property
    def answered(self) -> bool:
        """Whether every coordinator's barrier was read."""
        return self.found is not None and not self.waiting

    def barrier_read(self, barrier: Barrier) -> None:
        """Takes a barrier; one of another probe says nothing about this one."""
        if barrier.probe == self.probe and barrier.coordinator in self.waiting:
            self.waiting.remove(barrier.coordinator)
            self.barriers.append(barrier)

    def low_watermarks(self) -> dict[int, int]:
        """By coordinator, as the barriers say."""
        return {one.coordinator: one.low_watermark for one in self.barriers}

    def open_on(self) -> dict[TopicPartition, list[OpenTransactions]]:
        """What had registered before the probe and not ended, by data partition."""
        found: dict[TopicPartition, list[OpenTransactions]] = {}
        for barrier in self.barriers:
            for one in barrier.open:
                found.setdefault(one.data, []).append(one)
        return found
