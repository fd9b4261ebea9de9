"""Counts and logs records that are passed over because no owner can use them.

*Source*: docs/protocols B6 (foreign entries of logs), C10 (records that are no requests).
*Invariants*: a process counts each offset once, also when records are read or delivered again.
"""

from collections.abc import Callable

from prometheus_client import Counter

from stilltide.pipeline.drivers.service.requests import Neighbour
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.values import Offset, TopicPartition

log = get_logger(__name__)

SHOWN_BYTES = 32
"""Bytes of a record that its log line shows."""

LINES_MAX = 100
"""Lines for one partition; further records are only counted, so that they cannot fill the disk."""


class PassedOver:
    """Counts and logs records; `add` is called in offset order for each partition.

    Args:
        event: name of the log event.
        counter: finds the counter of a partition.
    """

    def __init__(self, event: str, counter: Callable[[TopicPartition], Counter]) -> None:
        self._event = event
        self._counter = counter
        self._next: dict[TopicPartition, int] = {}  # records below were counted
        self._lines: dict[TopicPartition, int] = {}

    def add(self, data: TopicPartition, offset: Offset, value: bytes | None, why: str) -> None:
        """A record was passed over; a record that was added before is ignored."""
        if offset < self._next.get(data, 0):
            return
        self._next[data] = offset + 1
        self._counter(data).inc()
        lines = self._lines[data] = self._lines.get(data, 0) + 1
        if lines > LINES_MAX:
            return
        begins = None if value is None else repr(value[:SHOWN_BYTES])  # any bytes, so escaped
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
    operator: bool = False,
) -> None:
    """Gives an owner a record of its requests; passes over one that cannot be decoded (C10).

    The sender of such a record is unknown and gets no answer; the owner goes on serving others.
    `operator`: the record is from a topic that only operators and workers may write (C15).
    """
    try:
        owner.requests_received(value, operator=operator)
    except DecodeError as error:
        undecodable.add(data, offset, value, error.primary)
