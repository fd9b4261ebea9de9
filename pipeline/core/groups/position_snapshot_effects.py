"""Effects of position snapshots, which the driver carries out in their order.

*Source*: docs/protocols I. When a write fails, or its fate is unknown, the controller ends:
another one begins by reading the signals.
"""

from dataclasses import dataclass

from stilltide.schemas.replication.signals import PositionSnapshotRequest, SignalKey, SignalValue
from stilltide.schemas.values import ClusterName


@dataclass(frozen=True, slots=True)
class WriteSignal:
    """Write a signal on this cluster; the controller reads the signal back."""

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


SnapshotEffect = WriteSignal | ReadDecidedEnd | ReadEnd
"""What the driver carries out."""
