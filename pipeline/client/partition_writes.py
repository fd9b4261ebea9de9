"""What a transaction wrote to one partition, from the delivery reports.

*Source*: protocols.md C6: what is not reported as durable is never counted, nor committed.
"""

from collections.abc import Callable

from stilltide.connectors.errors import ConnectorError
from stilltide.schemas.coordinator.transactions import Registered


class PartitionWrites:
    """One transaction's records of one registered partition.

    Attributes:
        data: the partition.
        start: the end offset it was registered from (C2).
        sent: records handed to the producer.
        count: those known to be durable.
        first: the lowest offset among them, -1 while none is known.
        end: the highest offset among them + 1.
        unplaced: one is durable at an unknown offset.
        error: why one was not delivered.
    """

    __slots__ = ("_reported", "count", "data", "end", "error", "first", "sent", "start", "unplaced")

    def __init__(self, registered: Registered, reported: Callable[[], None]) -> None:
        self.data = registered.data
        self.start = registered.start_offset
        self.sent = 0
        self.count = 0
        self.first = -1
        self.end = 0
        self.unplaced = False
        self.error: ConnectorError | None = None
        self._reported = reported

    def delivered(self, error: ConnectorError | None, offset: int) -> None:
        """The producer's report on one record; its offset is -1 where a retry hid it."""
        if error is not None:
            self.error = error
        else:
            self.count += 1
            if offset < 0:
                self.unplaced = True
            else:
                if self.first < 0 or offset < self.first:  # reports come in any order
                    self.first = offset
                self.end = max(self.end, offset + 1)
        self._reported()
