"""What the snapshot writer asks of its driver. A list of effects is carried out in its order.

*Source*: docs/protocols E1, E3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stilltide.pipeline.core.snapshots.sealed import SnapshotRecord
from stilltide.schemas.coordinator.barriers import Probe
from stilltide.schemas.values import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """Read data partitions first, then the log ends of all coordinators; report `positions_read`.

    Both are read from now on, one after the other (E1). A partition is reported with the topic id
    it had before and after its offsets were read, else not yet; one that the cluster does not have
    is left out of the report.

    Attributes:
        counter: of the probe.
        partitions: what to read.
    """

    counter: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class AskBarriers:
    """Ask these coordinators for a barrier in this marker partition; nothing is reported.

    The barriers come back among the markers. Asked again until they do.
    """

    probe: Probe
    coordinators: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadMarkerEnd:
    """Read the end offset of the marker partition, from now on; report `marker_end_read`."""

    counter: int


@dataclass(frozen=True, slots=True)
class WriteSnapshots:
    """Write these records in one native Kafka transaction, in this order (E3).

    Report `snapshots_written` when it is committed. If it is not, or nobody knows, this writer is
    over: another one begins, with recovery.
    """

    counter: int
    records: Sequence[SnapshotRecord]


@dataclass(frozen=True, slots=True)
class TrimMarkers:
    """Delete the markers below this offset; durable snapshots have absorbed them. May fail."""

    before: Offset


@dataclass(frozen=True, slots=True)
class SnapshotsTaken:
    """These requests are served: durable snapshots say what was true after each of them."""

    requests: Sequence[int]


WriterEffect = (
    ReadPositions | AskBarriers | ReadMarkerEnd | WriteSnapshots | TrimMarkers | SnapshotsTaken
)
"""What the driver carries out."""
