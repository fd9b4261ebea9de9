"""Visible records between the machines and the application.

*Source*: protocols.md D7: what is decided but not yet taken is bounded too.

*Invariants*: order per partition is kept; partitions take turns; a dropped partition leaves nothing
behind.
"""

from collections import deque
from collections.abc import Iterable

from connectors.base import Record
from schemas.values import EndOffset, TopicPartition


class _Queue:
    __slots__ = ("position", "records", "takes_turns")

    def __init__(self, position: EndOffset) -> None:
        self.records: deque[Record] = deque()
        self.position = position
        self.takes_turns = False


class DeliveredBuffer:
    """Records that may be taken, by partition; the owner keeps `count` within its limit."""

    def __init__(self) -> None:
        self._queues: dict[TopicPartition, _Queue] = {}
        self._turns: deque[_Queue] = deque()
        self.count = 0

    def open(self, data: TopicPartition, position: EndOffset) -> None:
        """Begins a partition at the position its reader begins at."""
        self._queues[data] = _Queue(position)

    def drop(self, data: TopicPartition) -> None:
        """Forgets a partition with all its records."""
        queue = self._queues.pop(data)
        self.count -= len(queue.records)
        queue.records.clear()

    def put(self, data: TopicPartition, records: Iterable[Record], position: EndOffset) -> None:
        """Adds records in offset order; `position` is the partition's once they are taken."""
        queue = self._queues[data]
        length = len(queue.records)
        queue.records.extend(records)
        queue.position = position
        self.count += len(queue.records) - length
        if queue.records and not queue.takes_turns:
            queue.takes_turns = True
            self._turns.append(queue)

    def take(self) -> Record | None:
        """The next record of any partition, None when there is none."""
        turns = self._turns
        while turns:
            queue = turns[0]
            if queue.records:
                turns.rotate(-1)
                self.count -= 1
                return queue.records.popleft()
            queue.takes_turns = False
            turns.popleft()
        return None

    def take_below(self, data: TopicPartition, end_offset: EndOffset) -> Record | None:
        """The next record of one partition, if it lies below the end offset."""
        queue = self._queues.get(data)
        if queue is None or not queue.records or queue.records[0].offset >= end_offset:
            return None
        self.count -= 1
        return queue.records.popleft()

    def waiting(self, data: TopicPartition) -> int:
        """Records of a partition that were not taken yet."""
        return len(self._queues[data].records)

    def position(self, data: TopicPartition) -> EndOffset | None:
        """Everything below it was taken or is withheld for good; None: not open."""
        queue = self._queues.get(data)
        if queue is None:
            return None
        return EndOffset(queue.records[0].offset) if queue.records else queue.position

    def positions(self) -> dict[TopicPartition, EndOffset]:
        """`position` of every open partition."""
        return {
            data: EndOffset(queue.records[0].offset) if queue.records else queue.position
            for data, queue in self._queues.items()
        }
