"""What the replication controller asks of its driver. Effects are carried out in their order.

*Source*: protocols.md I. When a write fails, or nobody knows, the controller is over: another one
begins by reading the markers.
"""

from dataclasses import dataclass

from stilltide.schemas.replication.signals import PositionSnapshotRequest, SignalKey, SignalValue
from stilltide.schemas.values import ClusterName


@dataclass(frozen=True, slots=True)
class WriteMarker:
    """Write a marker on this cluster; what becomes of it is read back."""

    key: SignalKey
    value: SignalValue


@dataclass(frozen=True, slots=True)
class ReadDecidedEnd:
    """Compute the decided end from now on; report `decided_end_read` (I3).

    That is: read the last stable offset of the data partition and the markers of its transactions
    to their end, both after this effect.
    """

    asker: ClusterName
    request: PositionSnapshotRequest


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Read the data partition's high watermark, from now on; report `end_read`."""

    attempt_id: bytes


SnapshotEffect = WriteMarker | ReadDecidedEnd | ReadEnd
"""What the driver carries out."""
