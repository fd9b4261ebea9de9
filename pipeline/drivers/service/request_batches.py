"""Gathers requests to one owner into few records, while others wait for its answers.

*Source*: protocols.md A (requests are batched by the same accumulator as log entries); measured: a
record costs its owner as much as a dozen requests, wherever it is read, logged and answered.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.writers import Delivered
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.drivers.buffered_log.batcher import Batcher
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.framing import encode_batch

log = get_logger(__name__)

LIMITS = BatchLimits(delay_ms_max=25.0)
"""Requests gather for so long at most: some answers wait for readers, and some owners are away."""

FEW = 2
"""A record of more requests than these is in flight until it is answered; one of no more until it
is durable, for those who are few would wait for each other where nobody else does."""

S = TypeVar("S")


class RequestBatches(Generic[S]):
    """Requests to one owner that are not answered.

    Args:
        send: appends the bytes of one record, and reports its fate.
    """

    def __init__(self, send: Callable[[bytes, Delivered], None]) -> None:
        self._send = send
        self._batcher = Batcher(LIMITS, self._write)
        self._unanswered: dict[int, S] = {}
        self._gathered: deque[int] = deque()  # numbers of requests that no record holds yet
        self._in_flight: dict[int, int] = {}  # records, by the request that is answered last

    def append(self, number: int, request: bytes, waits: S) -> None:
        """Takes one serialised request under its number, and who waits for the answer."""
        self._unanswered[number] = waits
        self.repeat(number, request)

    def repeat(self, number: int, request: bytes) -> None:
        """Takes a request again that is not answered."""
        self._gathered.append(number)
        self._batcher.append(request)

    def answered(self, number: int) -> S:
        """A request was answered or given up; returns who waits."""
        # First: what leaves next may be a repetition of it, and waits for no answer any more.
        waits = self._unanswered.pop(number)
        self._ended(number)
        return waits

    def close(self) -> list[S]:
        """Hands on what is gathered; returns all who wait. Nothing is taken afterwards."""
        self._batcher.close()
        unanswered, self._unanswered = self._unanswered, {}
        return list(unanswered.values())

    def _write(self, entry: WriteEntry) -> None:
        numbers = [self._gathered.popleft() for _ in entry.records]
        # What was answered while its repetition was gathered is answered no more.
        last = max((it for it in numbers if it in self._unanswered), default=0)
        self._in_flight[last] = self._in_flight.get(last, 0) + 1
        records = entry.records

        def delivered(error: ConnectorError | None, _offset: int) -> None:
            if error is not None:  # the session sends them again until their time-out
                log.warning("requests_not_delivered", requests=len(records), why=error.primary)
            if error is not None or not last or len(records) <= FEW:
                self._ended(last)

        self._send(records[0] if len(records) == 1 else encode_batch(records), delivered)

    def _ended(self, number: int) -> None:
        for _ in range(self._in_flight.pop(number, 0)):
            self._batcher.write_ended()
