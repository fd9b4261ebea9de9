"""Effects and figures of the snapshot writer; the driver carries out effects in their order.

*Source*: docs/protocols E1, E3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.core.snapshots.aborted import SnapshotRecord
from stilltide.schemas.coordinator.markers import Probe
from stilltide.schemas.values import Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class ReadPositions:
    """Effect: read data partitions, then the log ends of all coordinators; report `positions_read`.

    Both are read after this effect, in this order (E1). A partition's topic id must be the same
    before and after its offsets are read; otherwise they are read again. The report leaves out
    partitions that the cluster does not have.

    Attributes:
        counter: counter of the probe.
        partitions: data partitions to read.
    """

    counter: int
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True)
class AskBarriers:
    """Effect: ask these coordinators for a barrier in this marker partition.

    Nothing is reported: the barriers come among the markers. The effect is repeated until then.
    """

    probe: Probe
    coordinators: Sequence[int]


@dataclass(frozen=True, slots=True)
class ReadMarkerEnd:
    """Effect: read the marker partition's end offset, from now on; report `marker_end_read`."""

    counter: int


@dataclass(frozen=True, slots=True)
class WriteSnapshots:
    """Effect: write these records in one native transaction, in this order (E3).

    Report `snapshots_written` after the commit. If the commit fails or its outcome is unknown, this
    writer ends, and another one begins with recovery.
    """

    counter: int
    records: Sequence[SnapshotRecord]


@dataclass(frozen=True, slots=True)
class FindYounger:
    """Effect: find the first marker that is at most `age_ms` old; report `younger_found`.

    Its timestamp is wall time. If the broker does not answer, nothing is reported, and the question
    comes again (E9).
    """

    age_ms: int


@dataclass(frozen=True, slots=True)
class TrimMarkers:
    """Effect: delete the markers below this offset: absorbed, and older than the retention (E9).

    A failure does no harm.
    """

    before: Offset


@dataclass(frozen=True, slots=True)
class SnapshotsTaken:
    """Effect: answer these requests; durable snapshots come from a probe that began after them."""

    requests: Sequence[int]


WriterEffect = (
    ReadPositions
    | AskBarriers
    | ReadMarkerEnd
    | WriteSnapshots
    | FindYounger
    | TrimMarkers
    | SnapshotsTaken
)
"""What the driver carries out."""


class SnapshotStats(NamedTuple):
    """The figures of a snapshot writer that serves.

    Attributes:
        data_partitions: number of data partitions that the writer knows.
        aborted_count: aborted transactions in the sets of all data partitions.
        max_read_position_lag: offsets from a data partition's max read position to its end; the
            largest of the last probe.
        requests_held: requests that wait for their snapshot.
        markers_read_to: end offset of the markers that were read.
        markers_trimmed_to: offset below which markers were trimmed; 0: none were.
        recovery_ms: time from the beginning of the ownership until the writer served.
    """

    data_partitions: int
    aborted_count: int
    max_read_position_lag: int
    requests_held: int
    markers_read_to: Offset
    markers_trimmed_to: Offset
    recovery_ms: int
