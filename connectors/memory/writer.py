"""A writer of the memory broker.

*Source*: connectors.ports, `LogWriter`.

*Invariants*: a record is written and reported in a later turn of the loop than the call of
`append`; the order in a partition is the order of the calls.

Writes sets of records completely or not at all, for the memory broker.

*Source*: connectors.ports, `TransactionalWriter`.

*Invariants*: a set is appended in one step, in a later turn of the loop than the call of `write`;
after the set each partition skips an offset, because Kafka's control record takes one.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.log import Report
from stilltide.connectors.ports.readers import NewRecord
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import TopicPartition

RECORD_BYTES_MAX = 6 * 1024 * 1024
"""A Kafka writer's limit; a topic's own limit, which may be lower, is applied at the append."""


class _Waiting(NamedTuple):
    data: TopicPartition
    key: bytes | None
    value: bytes | None
    headers: NewHeaders | None
    delivered: Delivered


class MemoryWriter:
    """A `LogWriter`."""

    def __init__(self, broker: MemoryBroker, client_id: str, records_max: int) -> None:
        self._broker = broker
        self._client_id = client_id
        self._records_max = records_max
        self._waiting: deque[_Waiting] = deque()
        self._due = False
        self._closed = False
        self._moved = asyncio.Event()
        self._watch = broker.watchers.add(self._schedule)

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> None:
        """Queues one record and returns at once; see `LogWriter.append`."""
        if self._closed:
            raise FatalError(f"writer {self._client_id} is closed")
        size = len(key or b"") + len(value or b"")
        if size > RECORD_BYTES_MAX:
            raise FatalError(f"a record of {size} bytes; the most is {RECORD_BYTES_MAX}")
        if len(self._waiting) >= self._records_max:
            raise RetriableError(
                f"the queue of writer {self._client_id} is full", hint="wait for room"
            )
        self._waiting.append(_Waiting(data, key, value, headers and list(headers), delivered))
        self._schedule()

    async def room(self) -> None:
        """Returns when the local queue has room again; at once when it is not full."""
        while len(self._waiting) >= self._records_max and not self._closed:
            await self._wait()

    def flush_soon(self) -> None:
        """Does nothing: the writer never lingers."""

    async def flush(self, timeout_s: float) -> bool:
        """Waits for the report of every queued record; False if some are missing in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._waiting:
                    await self._wait()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        await self.flush(timeout_s)
        self._watch.end()
        while self._waiting:
            self._report(self._waiting.popleft(), RetriableError("the writer was closed"), -1)
        self._moved.set()

    async def _wait(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _schedule(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._write)

    def _write(self) -> None:
        """Writes the queued records of topics that are not held, then tells readers of them."""
        self._due = False
        delayed: deque[_Waiting] = deque()
        changed: dict[TopicPartition, None] = {}
        for _ in range(len(self._waiting)):
            waiting = self._waiting.popleft()
            if self._broker.is_held(waiting.data.topic):
                delayed.append(waiting)
            else:
                self._land(waiting)
                changed[waiting.data] = None
        self._broker.watchers.notify(changed)
        self._waiting.extendleft(reversed(delayed))
        self._moved.set()

    def _land(self, waiting: _Waiting) -> None:
        data, key, value, headers, _ = waiting
        self._report(waiting, *written(self._broker, data, key, value, headers or None))

    def _report(self, waiting: _Waiting, error: ConnectorError | None, offset: int) -> None:
        try:
            waiting.delivered(error, offset)
        except Exception as failure:  # noqa: BLE001 - one caller's bug must not cost the others their reports
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a delivery callback failed", "exception": failure}
            )


def written(
    broker: MemoryBroker,
    data: TopicPartition,
    key: bytes | None,
    value: bytes | None,
    headers: Headers | None,
) -> tuple[ConnectorError | None, int]:
    """Appends a record, and returns the delivery report; the caller tells readers of the record."""
    try:
        offset = broker.log_for(data, key, value).append(key, value, headers)
    except ConnectorError as error:
        return error, -1
    match broker.reports.next(data.topic):
        case Report.SENT:
            return None, offset
        case Report.OFFSET_UNKNOWN:
            return None, -1
        case Report.LOST:
            return RetriableError(f"no answer to a write to {data}"), -1


class MemoryTransactionalWriter:
    """A `TransactionalWriter` of a memory broker."""

    def __init__(self, broker: MemoryBroker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch = 0
        self._closed = False
        self._moved = asyncio.Event()
        self._watch = broker.watchers.add(self._moved.set)

    async def fence(self) -> None:
        """Takes the transactional id; see `TransactionalWriter.fence`."""
        self._check_open()
        await asyncio.sleep(0)
        self._epoch = self._broker.transactions.fence(self._id)

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Writes a set; see `TransactionalWriter.write`."""
        self._check_open()
        if not records:
            return
        if not self._epoch:
            raise FatalError(f"writer {self._id} has not been fenced", hint="call fence() first")
        epoch, self._epoch = self._epoch, 0
        await asyncio.sleep(0)
        while self._is_held(epoch, records):
            self._moved.clear()
            await self._moved.wait()
        if self._broker.transactions.epoch_of(self._id) != epoch:
            raise FencedError(f"another writer has taken transactional id {self._id}")
        self._broker.transactions.append_all(records)
        self._epoch = epoch

    async def close(self) -> None:
        """Ends the writer; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._watch.end()

    def _is_held(self, epoch: int, records: Sequence[NewRecord]) -> bool:
        return self._broker.transactions.epoch_of(self._id) == epoch and any(
            self._broker.is_held(record.data.topic) for record in records
        )

    def _check_open(self) -> None:
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
