"""Counts a transaction's records on one partition by the producer's delivery reports.

*Source*: docs/protocols C6: a record that is not reported as durable is not counted, and is never
committed.
"""

from collections.abc import Callable

from stilltide.connectors.errors import ConnectorError
from stilltide.schemas.coordinator.transactions import Registered


class PartitionWrites:
    """One transaction's records of one registered partition.

    Attributes:
        data: the partition.
        topic_id: the topic id with which the partition was registered (E8).
        start: the end offset from which the partition was registered (C2).
        sent: number of records handed to the producer.
        count: number of records known to be durable.
        first: the lowest offset of a durable record, -1 while none is known.
        end: the highest offset of a durable record + 1.
        unplaced: whether a record is durable at an unknown offset.
        error: why a record was not delivered; None if all were.
    """

    __slots__ = (
        "_reported",
        "count",
        "data",
        "end",
        "error",
        "first",
        "sent",
        "start",
        "topic_id",
        "unplaced",
    )

    def __init__(self, registered: Registered, reported: Callable[[], None]) -> None:
        self.data = registered.data
        self.start = registered.start_offset
        self.topic_id = registered.topic_id
        self.sent = 0
        self.count = 0
        self.first = -1
        self.end = 0
        self.unplaced = False
        self.error: ConnectorError | None = None
        self._reported = reported

    def delivered(self, error: ConnectorError | None, offset: int) -> None:
        """The producer's report on one record; the offset is -1 when a retry hid it."""
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
