"""Visible records between the machines and the application.

*Source*: protocols.md D7: decided records that are not yet taken are bounded too.

*Invariants*: order per partition is kept; partitions take turns; a dropped partition leaves nothing
behind, also not in a queue that is being emptied.
"""

from collections import deque
from collections.abc import Iterable

from stilltide.connectors.ports.records import Record
from stilltide.schemas.values import EndOffset, TopicPartition

_NOTHING: deque[Record] = deque(maxlen=0)


class DeliveredBuffer:
    """Records that may be taken, by partition; the owner keeps `count` within its limit.

    Queues are handed out to be emptied from the left, which costs less than a call for each record.
    """

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._positions: dict[TopicPartition, EndOffset] = {}
        self._turns: deque[TopicPartition] = deque()

    @property
    def count(self) -> int:
        """Records that were not taken yet."""
        return sum(len(queue) for queue in self._queues.values())

    def open(self, data: TopicPartition, position: EndOffset) -> None:
        """Begins a partition at the position its reader begins at."""
        self._queues[data] = deque()
        self._positions[data] = position
        self._turns.append(data)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records."""
        self._queues.pop(data).clear()
        del self._positions[data]
        self._turns.remove(data)

    def put(self, data: TopicPartition, records: Iterable[Record], position: EndOffset) -> None:
        """Adds records in offset order; `position` becomes the partition's once they are taken."""
        self._queues[data].extend(records)
        self._positions[data] = position

    def next_queue(self) -> deque[Record]:
        """The records of the partition whose turn it is; empty when there are none at all."""
        for _ in range(len(self._turns)):
            queue = self._queues[self._turns[0]]
            self._turns.rotate(-1)
            if queue:
                return queue
        return _NOTHING

    def queue(self, data: TopicPartition) -> deque[Record]:
        """The records of one partition; empty when the partition is not open."""
        return self._queues.get(data, _NOTHING)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """Everything below it was taken or is withheld for good; None: not open."""
        queue = self._queues.get(data)
        return EndOffset(queue[0].offset) if queue else self._positions.get(data)

    def positions(self) -> dict[TopicPartition, EndOffset]:
        """`position` of every open partition."""
        return {
            data: EndOffset(queue[0].offset) if queue else self._positions[data]
            for data, queue in self._queues.items()
        }
