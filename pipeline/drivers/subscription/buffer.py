"""Buffers visible records between the machines and the application.

*Source*: docs/protocols D7: the number of visible records that wait for the application is bounded.

*Invariants*: order per partition is kept; partitions take turns; a dropped partition leaves no
record behind, even in a queue that the application is emptying.
"""

from collections import deque
from collections.abc import Iterable

from stilltide.connectors.ports.records import Record
from stilltide.schemas.values import EndOffset, TopicPartition

_NOTHING: deque[Record] = deque(maxlen=0)


class DeliveredBuffer:
    """Records that the application may take, by partition; the caller keeps `count` in its limit.

    The application empties a queue from the left, which costs less than a call for each record.
    """

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, deque[Record]] = {}
        self._positions: dict[TopicPartition, EndOffset] = {}
        self._turns: deque[TopicPartition] = deque()

    @property
    def count(self) -> int:
        """The number of records that were not taken yet."""
        return sum(len(queue) for queue in self._queues.values())

    def open(self, data: TopicPartition, position: EndOffset) -> None:
        """Begins a partition at the position where its reader begins."""
        self._queues[data] = deque()
        self._positions[data] = position
        self._turns.append(data)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records."""
        self._queues.pop(data).clear()
        del self._positions[data]
        self._turns.remove(data)

    def put(self, data: TopicPartition, records: Iterable[Record], position: EndOffset) -> None:
        """Adds records in offset order; `position` is the partition's, once they are taken."""
        self._queues[data].extend(records)
        self._positions[data] = position

    def next_queue(self) -> deque[Record]:
        """The records of the partition whose turn it is; empty if no partition has records."""
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
        """The end offset of what was taken or is withheld for good; None: not open."""
        queue = self._queues.get(data)
        return EndOffset(queue[0].offset) if queue else self._positions.get(data)

    def positions(self) -> dict[TopicPartition, EndOffset]:
        """`position` of every open partition."""
        return {
            data: EndOffset(queue[0].offset) if queue else self._positions[data]
            for data, queue in self._queues.items()
        }
