"""Gathers requests to one owner into few records, while earlier requests wait for answers.

*Source*: docs/protocols A3 (the accumulator of log entries batches requests, too); measured: a
record costs its owner as much as a dozen requests, over reading, logging and answering.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from stilltide.connectors.errors import ConnectorError, NotAuthorizedError, RecordRefusedError
from stilltide.connectors.ports.writers import Delivered, LogWriter
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.core.service.session import ClientSession
from stilltide.pipeline.drivers.buffered_log.batcher import Batcher
from stilltide.pipeline.drivers.service.ask.direct_line import ClientLine
from stilltide.pipeline.drivers.service.hindrances import Seldom, reason_of
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.framing import encode_batch
from stilltide.schemas.service.envelopes import OwnerEnded, client_key
from stilltide.schemas.values import TopicPartition

log = get_logger(__name__)

LIMITS = BatchLimits(delay_ms_max=25.0)
"""Requests gather for at most this time, since some answers take long and some owners are away."""

FEW = 2
"""A record of more requests than this is in flight until it is answered, so that later requests
gather: a record passes once through the owner's Faust agent, log, read-back and answer, so more
requests in a record are most of the throughput. A record of `FEW` or less is in flight only until
it is durable: with so little load, requests would only wait for each other."""

Waits = Callable[[Any], None]
"""Takes the answer to a request, or the error that stands for one."""


class RequestBatches:
    """Unanswered requests to one owner.

    Args:
        ways: the ways to the owners.
        owner: number of the owner.
        session: knows the requests; forgets those that the cluster does not take.

    Attributes:
        problem: why the last record was not delivered; None: it was.
        ended: what was told of the owner's end since its last answer; None: nothing (B8).
    """

    def __init__(
        self,
        ways: "Ways",
        owner: int,
        session: ClientSession[Any, Any],
    ) -> None:
        self.problem: ConnectorError | None = None
        self.ended: OwnerEnded | None = None
        self._ways = ways
        self._owner = owner
        self._session = session
        self._repeated: set[int] = set()
        self._batcher = Batcher(LIMITS, self._write)
        self._unanswered: dict[int, Waits] = {}
        self._gathered: deque[int] = deque()  # numbers of requests that no record holds yet
        self._in_flight: dict[int, int] = {}  # records, by the request that is answered last

    def append(self, number: int, request: bytes, waits: Waits) -> None:
        """Takes one serialised request, its number, and what waits for its answer."""
        self._unanswered[number] = waits
        self._append(number, request)

    def repeat(self, number: int, request: bytes) -> None:
        """Takes an unanswered request again."""
        self._repeated.add(number)
        self._append(number, request)

    def answered(self, number: int) -> Waits:
        """A request was answered or given up; returns what waits for it."""
        # First: the next record may hold a repetition of it, and must not wait for its answer.
        waits = self._unanswered.pop(number)
        self._repeated.discard(number)
        self._ended(number)
        return waits

    def close(self) -> list[Waits]:
        """Sends the gathered requests, returns what waits for all others; call it last."""
        self._batcher.close()
        unanswered, self._unanswered = self._unanswered, {}
        return list(unanswered.values())

    def _append(self, number: int, request: bytes) -> None:
        self._gathered.append(number)
        self._batcher.append(request)

    def _write(self, entry: WriteEntry) -> None:
        numbers = [self._gathered.popleft() for _ in entry.records]
        # A request that was answered while its repetition was gathered gets no second answer.
        last = max((it for it in numbers if it in self._unanswered), default=0)
        self._in_flight[last] = self._in_flight.get(last, 0) + 1
        records = entry.records

        def delivered(error: ConnectorError | None, _offset: int) -> None:
            if error is not None and self._ways.seldom.due(reason_of(error)):
                # The session sends them again until their time-out.
                log.warning(
                    "requests_not_delivered",
                    requests=len(records),
                    why=error.primary,
                    detail=error.detail,
                    hint=error.hint,
                )
            self.problem = error
            if error is not None or not last or len(records) <= FEW:
                self._ended(last)
            if isinstance(error, NotAuthorizedError | RecordRefusedError):
                # An earlier record of a repeated request may have arrived.
                self._refused([it for it in numbers if it not in self._repeated], error)

        value = records[0] if len(records) == 1 else encode_batch(records)
        self._ways.send(self._owner, value, delivered)

    def _refused(self, numbers: Sequence[int], error: ConnectorError) -> None:
        """The cluster does not take these requests, of which no record was ever sent (C17)."""
        for number in numbers:
            if number in self._unanswered and self._session.forget(number):
                self.answered(number)(error)

    def _ended(self, number: int) -> None:
        for _ in range(self._in_flight.pop(number, 0)):
            self._batcher.write_ended()


class Neighbour(Protocol):
    """An owner in this process, which is asked, and answers, without Kafka."""

    @property
    def serving(self) -> bool:
        """Whether it owns its log now."""
        ...

    def requests_received(self, value: bytes | None, *, operator: bool = False) -> None:
        """Takes one value of a requests topic; raises `DecodeError`.

        `operator`: the value is from a topic that only operators and workers may write (C15).
        """
        ...


class Ways:
    """The ways to the owners of one service.

    Args:
        topic: topic of the requests.
        operators: whether only operators and workers may write to the topic (C15).
        writer: appends requests; shared with the client's data.
        client_id: the client's secret.

    Attributes:
        neighbours: owners in this process, by partition. A serving one is asked directly: its log
            makes the request durable and decides which owner's entries count (B), and a lost
            request is repeated (C1b).
        lines: direct lines, by partition; empty: the client has none.
        seldom: lets one line in a minute pass for each cause of requests that are not delivered.
        reached: called with the partition of the topic whose owner took requests by another way.
    """

    def __init__(self, topic: str, writer: LogWriter, client_id: bytes, *, operators: bool) -> None:
        self.neighbours: Mapping[int, Neighbour] = {}
        self.lines: list[ClientLine] = []
        self.seldom = Seldom()
        self.reached: Callable[[TopicPartition], None] | None = None
        self._topic = topic
        self._writer = writer
        self._key = client_key(client_id)
        self._operators = operators

    def send(self, partition: int, value: bytes, delivered: Delivered) -> None:
        """Sends the value of a requests record; a lost one is repeated."""
        soon = asyncio.get_running_loop().call_soon
        neighbour = self.neighbours.get(partition)
        if neighbour is not None and neighbour.serving:
            soon(partial(neighbour.requests_received, value, operator=self._operators))
            soon(delivered, None, -1)
            if self.reached is not None:
                self.reached(TopicPartition(self._topic, partition))
            return
        if self.lines and self.lines[partition].send(value):
            soon(delivered, None, -1)
            return
        data = TopicPartition(self._topic, partition)
        try:
            self._writer.append(data, value, delivered, key=self._key)
        except ConnectorError as error:
            soon(delivered, error, -1)

    async def close(self) -> None:
        """Closes the lines."""
        await asyncio.gather(*(line.close() for line in self.lines))
