"""Signals on their way across a link: requests and responses wait for the link's position.

*Source*: docs/protocols H4.
*Invariants*: requests and responses of a data partition are written to the target in the order they
have on the source, each once the link has passed the decided end in it; updates are written at
once. A signal that is replaced while it waits is never written. At most one signal waits for each
key.

Refuses: signals of other clusters than the source, responses to other clusters than the target.
"""

from collections import defaultdict
from collections.abc import Iterator

from stilltide.schemas.replication.signals import (
    PositionSnapshotRequest,
    PositionSnapshotResponse,
    RequestKey,
    ResponseKey,
    SignalKey,
    SignalValue,
    Update,
    UpdateKey,
)
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition

CopiedSignal = tuple[SignalKey, SignalValue]


class SignalQueue:
    """The signals of one positions partition, from one cluster to another (H4)."""

    def __init__(self, source: ClusterName, target: ClusterName) -> None:
        self._source = source
        self._target = target
        self._there: dict[SignalKey, SignalValue] = {}  # on the target
        self._updates: dict[SignalKey, Update] = {}
        self._waiting: defaultdict[
            TopicPartition, dict[SignalKey, PositionSnapshotRequest | PositionSnapshotResponse]
        ]
        self._waiting = defaultdict(dict)

    def found_on_target(self, key: SignalKey, value: SignalValue) -> None:
        """A signal that the target has already; it need not be written again."""
        self._there[key] = value

    def read(self, key: SignalKey, value: SignalValue) -> None:
        """Takes the next signal of the source."""
        if not self._concerns(key):
            return
        waiting = self._waiting[key.data]
        self._updates.pop(key, None)
        waiting.pop(key, None)
        if self._there.get(key) == value:
            return
        if isinstance(value, Update):
            self._updates[key] = value
        elif isinstance(value, PositionSnapshotRequest | PositionSnapshotResponse):
            waiting[key] = value

    def _concerns(self, key: SignalKey) -> bool:
        if key.source != self._source:
            return False
        if isinstance(key, ResponseKey):
            return key.target == self._target
        return isinstance(key, RequestKey | UpdateKey)

    def updates(self) -> list[CopiedSignal]:
        """The updates to write, which wait for no position."""
        return list(self._updates.items())

    def waiting(self) -> Iterator[TopicPartition]:
        """Data partitions with requests or responses that wait."""
        return (data for data, waiting in self._waiting.items() if waiting)

    def passed(
        self, data: TopicPartition, incarnation: bytes, position: EndOffset
    ) -> list[CopiedSignal]:
        """Requests and responses of a data partition that the link's position has passed.

        Signals of another incarnation are dropped.
        """
        taken: list[CopiedSignal] = []
        waiting = self._waiting[data]
        for key, value in list(waiting.items()):
            if value.incarnation != incarnation:
                del waiting[key]
            elif value.decided_end <= position:
                taken.append((key, value))
            else:
                break
        return taken

    def written(self, signals: list[CopiedSignal]) -> None:
        """These signals are durable on the target."""
        for key, value in signals:
            self._there[key] = value
            for queue in (self._updates, self._waiting[key.data]):
                if queue.get(key) == value:
                    del queue[key]
