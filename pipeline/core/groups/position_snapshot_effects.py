"""Effects of position snapshots, which the driver carries out in their order.

*Source*: docs/protocols I1-I4. When a write fails, or its outcome is unknown, the controller ends:
another one begins by reading the signals.
"""

from dataclasses import dataclass

from stilltide.schemas.replication.signals import PositionSnapshotRequest, SignalKey, SignalValue
from stilltide.schemas.values import ClusterName


@dataclass(frozen=True, slots=True)
class WriteSignal:
    """Effect: write a signal on this cluster; the controller reads the signal back."""

    key: SignalKey
    value: SignalValue


@dataclass(frozen=True, slots=True)
class ReadDecidedEnd:
    """Effect: compute the decided end from now on; report `decided_end_read` (I3).

    The last stable offset of the data partition and the end of its transactions' markers are read
    after this effect.
    """

    asker: ClusterName
    request: PositionSnapshotRequest


@dataclass(frozen=True, slots=True)
class ReadEnd:
    """Effect: read the data partition's high watermark, from now on; report `end_read`."""

    attempt_id: bytes


SnapshotEffect = WriteSignal | ReadDecidedEnd | ReadEnd
"""What the driver carries out."""
