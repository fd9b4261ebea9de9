"""Records that nobody can use are passed over: counted, and logged once each.

*Source*: protocols.md B6 (foreign entries of logs), C10 (records that are no requests).
*Invariants*: each place is counted once in a process, whatever is replayed or delivered again.
"""

from collections.abc import Callable

from prometheus_client import Counter

from stilltide.pipeline.drivers.service.requests import Neighbour
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import Offset, TopicPartition

log = get_logger(__name__)

SHOWN_BYTES = 32
"""Of a record, in its line."""

LINES_MAX = 100
"""Of one partition; whoever writes more of them shall not fill the disk with lines."""


class PassedOver:
    """Counts and logs records of some topics; tell it of those of a partition in offset order.

    Args:
        event: of the lines.
        counter: of a partition.
    """

    def __init__(self, event: str, counter: Callable[[TopicPartition], Counter]) -> None:
        self._event = event
        self._counter = counter
        self._next: dict[TopicPartition, int] = {}  # below lies nothing that is new
        self._lines: dict[TopicPartition, int] = {}

    def add(self, data: TopicPartition, offset: Offset, value: bytes | None, why: str) -> None:
        """One record was passed over, perhaps not for the first time."""
        if offset < self._next.get(data, 0):
            return
        self._next[data] = offset + 1
        self._counter(data).inc()
        lines = self._lines[data] = self._lines.get(data, 0) + 1
        if lines > LINES_MAX:
            return
        begins = None if value is None else repr(value[:SHOWN_BYTES])  # escaped: anybody's bytes
        log.warning(
            self._event,
            topic=data.topic,
            partition=data.partition,
            offset=offset,
            begins=begins,
            size_bytes=len(value or b""),
            why=why,
            **({"further": "only counted"} if lines == LINES_MAX else {}),
        )


def hand_over(
    owner: Neighbour,
    data: TopicPartition,
    offset: Offset,
    value: bytes | None,
    *,
    undecodable: PassedOver,
) -> None:
    """Gives an owner a record of its requests; one that does not decode is passed over (C10).

    Whoever sent it cannot be answered, and the owner has others to serve.
    """
    try:
        owner.requests_received(value)
    except DecodeError as error:
        undecodable.add(data, offset, value, error.primary)
