"""One probe of a snapshot writer, and the write that follows it.

*Source*: docs/protocols E1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.schemas.coordinator.markers import Barrier, OpenTransactions, Probe
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(slots=True)
class Cycle:
    """How far a probe has come; its steps follow one another.

    Attributes:
        probe: id of the probe.
        partitions: data partitions that get a snapshot.
        requests: data partition of each request that the probe serves, by request number.
        retry_ms: when the present step is repeated if no answer comes.
        found: offsets of the data partitions, which are read first; None until then.
        waiting: coordinators whose barriers have not been read.
        barriers: barriers that were read.
        end_asked: whether the marker partition's end was asked for, after the last barrier.
        marker_end: end offset up to which markers are read; None until it is known.
        covered_to: K* after the write that is under way; None before the write.
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
        """Takes a barrier; a barrier of another probe is ignored."""
        if barrier.probe == self.probe and barrier.coordinator in self.waiting:
            self.waiting.remove(barrier.coordinator)
            self.barriers.append(barrier)

    def low_watermarks(self) -> dict[int, int]:
        """The low watermark of each coordinator, from the barriers."""
        return {one.coordinator: one.low_watermark for one in self.barriers}

    def open_on(self) -> dict[TopicPartition, list[OpenTransactions]]:
        """The transactions registered before the probe and not ended, by data partition."""
        found: dict[TopicPartition, list[OpenTransactions]] = {}
        for barrier in self.barriers:
            for one in barrier.open:
                found.setdefault(one.data, []).append(one)
        return found
