"""A writer whose records travel from a simulated process to a broker."""

import asyncio

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.writer import RECORD_BYTES_MAX, written
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.values import TopicPartition
from tests.simulation.network.paths import Path

DELIVERY_S = 8.0
"""Time after which a record without a report is reported as unknown."""

HELD_S = 0.25
"""Time between two attempts to write to a topic that takes no records."""


class _Letter:
    """A record that an application has appended, until it has a report."""

    __slots__ = ("data", "deadline_s", "delivered", "key", "value_headers")

    def __init__(
        self,
        data: TopicPartition,
        key: bytes | None,
        value_headers: tuple[bytes | None, NewHeaders | None],
        delivered: Delivered,
    ) -> None:
        self.data = data
        self.key = key
        self.value_headers = value_headers
        self.delivered = delivered
        self.deadline_s = 0.0


_Reports = list[tuple[_Letter, ConnectorError | None, int]]


class NetworkWriter:
    """A `LogWriter` whose records travel in batches, in the order of `append`."""

    def __init__(self, broker: MemoryBroker, path: Path, records_max: int) -> None:
        self._broker = broker
        self._path = path
        self._records_max = records_max
        self._letters: list[_Letter] = []
        self._open: dict[_Letter, None] = {}  # without a report, in order
        self._closed = False
        self._moved = asyncio.Event()
        self._carrying = False
        self._timer_armed = False

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: NewHeaders | None = None,
    ) -> None:
        """Queues one record; see `LogWriter.append`."""
        if self._closed:
            raise FatalError("the writer is closed")
        if len(key or b"") + len(value or b"") > RECORD_BYTES_MAX:
            raise FatalError("a record is too large")
        if len(self._open) >= self._records_max:
            raise RetriableError("the queue of the writer is full", hint="wait for room")
        letter = _Letter(data, key, (value, list(headers) if headers else None), delivered)
        letter.deadline_s = self._path.loop.now_s + DELIVERY_S
        self._open[letter] = None
        self._letters.append(letter)
        if not self._timer_armed:
            self._arm(letter)
        if not self._carrying:
            self._carrying = True
            self._path.to(self._arrive)

    async def room(self) -> None:
        """Returns when the queue has room."""
        while len(self._open) >= self._records_max and not self._closed:
            await self._moving()

    def flush_soon(self) -> None:
        """Does nothing: the writer never lingers."""

    async def flush(self, timeout_s: float) -> bool:
        """Waits for all reports; False if time is up before."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._open:
                    await self._moving()
        except TimeoutError:
            return False
        return True

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then reports `RetriableError` for records left."""
        if self._closed:
            return
        self._closed = True
        await self.flush(timeout_s)
        for letter in list(self._open):
            self._report(letter, RetriableError("the writer was closed"), -1)

    async def _moving(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _arrive(self) -> None:
        """Writes a batch: all that was appended since the last batch arrived."""
        now_s, still_open, broker = self._path.loop.now_s, self._open, self._broker
        held = [it for it in self._letters if broker.is_held(it.data.topic)]
        batch = [it for it in self._letters if it not in held] if held else self._letters
        self._letters = held
        reports: _Reports = []
        for letter in batch:
            if letter not in still_open or letter.deadline_s <= now_s:
                self._note(letter, "is never written")
                continue  # reported as late
            error, offset = written(broker, letter.data, letter.key, *letter.value_headers)
            if self._path.trace.on:
                text = f"is at {offset}" if error is None else f"has no report: {error}"
                self._note(letter, text)
            reports.append((letter, error, offset))
        if self._path.moments:
            for letter in batch:
                self._path.appended(letter.data.topic)
        self._carrying = bool(held)
        if held:
            self._path.loop.call_later(HELD_S, self._arrive, context=self._path.process.context)
        broker.watchers.notify({letter.data: None for letter, _, _ in reports})
        if reports:
            self._path.tell(self._report_all, reports)

    def _note(self, letter: _Letter, text: str) -> None:
        value = (letter.value_headers[0] or b"")[:24]
        self._path.trace.note(self._path.process.name, f"{letter.data} {value!r} {text}")

    def _arm(self, oldest: _Letter) -> None:
        self._timer_armed = True
        context = self._path.process.context
        self._path.loop.call_at(oldest.deadline_s, self._late, context=context)

    def _late(self) -> None:
        """Reports what is too late, and waits for the next deadline."""
        self._timer_armed = False
        now_s = self._path.loop.now_s
        for letter in list(self._open):
            if letter.deadline_s > now_s:
                self._arm(letter)
                return
            self._report(letter, RetriableError("no report in time"), -1)

    def _report_all(self, reports: _Reports) -> None:
        for letter, error, offset in reports:
            self._report(letter, error, offset)

    def _report(self, letter: _Letter, error: ConnectorError | None, offset: int) -> None:
        if letter in self._open:
            del self._open[letter]
            self._moved.set()
            letter.delivered(error, offset)
