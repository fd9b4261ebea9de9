"""A writer whose records travel from a simulated process to a broker."""

import asyncio
from collections import deque
from functools import partial
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.memory.writer import RECORD_BYTES_MAX, MemoryWriter
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.values import TopicPartition
from tests.simulation.network.paths import Path

DELIVERY_S = 8.0
"""Time after which a record without a report is reported as unknown."""


_Content = tuple[bytes | None, bytes | None, NewHeaders | None]
"""Key, value and headers."""


class _Letter:
    """A record that an application has appended, until it has a report."""

    __slots__ = ("content", "data", "deadline_s", "delivered")

    def __init__(
        self, data: TopicPartition, content: _Content, delivered: Delivered, deadline_s: float
    ) -> None:
        self.data = data
        self.content = content
        self.delivered = delivered
        self.deadline_s = deadline_s


class _Report(NamedTuple):
    letter: _Letter
    error: ConnectorError | None
    offset: int


class NetworkWriter:
    """A `LogWriter` whose records travel in batches, in the order of `append`."""

    def __init__(self, inner: MemoryWriter, path: Path, records_max: int) -> None:
        self._inner = inner
        self._path = path
        self._records_max = records_max
        self._letters: deque[_Letter] = deque()
        self._open: dict[_Letter, None] = {}  # without a report, in order
        self._reports: list[_Report] = []
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
        deadline_s = asyncio.get_running_loop().time() + DELIVERY_S
        content = key, value, headers and list(headers)
        letter = _Letter(data, content, delivered, deadline_s)
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

    def hurry(self) -> None:
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
        now_s = asyncio.get_running_loop().time()
        batch, self._letters = self._letters, deque()
        for letter in batch:
            if letter not in self._open or letter.deadline_s <= now_s:
                self._note(letter, "is never written")
                continue  # reported as late
            self._inner.queue(letter.data, *letter.content, partial(self._delivered, letter))
        self._inner.write_queued()
        if self._path.moments:
            for letter in batch:
                self._path.appended(letter.data.topic)
        self._carrying = False
        self._send_reports()

    def _send_reports(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._path.tell(self._report_all, reports)

    def _delivered(self, letter: _Letter, error: ConnectorError | None, offset: int) -> None:
        self._note(letter, f"is at {offset}" if error is None else f"has no report: {error}")
        self._reports.append(_Report(letter, error, offset))
        if not self._carrying:
            self._send_reports()  # of a record that the broker had held back

    def _note(self, letter: _Letter, text: str) -> None:
        if self._path.trace.on:
            value = (letter.content[1] or b"")[:24]
            self._path.trace.note(self._path.process.name, f"{letter.data} {value!r} {text}")

    def _arm(self, oldest: _Letter) -> None:
        self._timer_armed = True
        asyncio.get_running_loop().call_at(
            oldest.deadline_s, self._late, context=self._path.process.context
        )

    def _late(self) -> None:
        """Reports what is too late, and waits for the next deadline."""
        self._timer_armed = False
        now_s = asyncio.get_running_loop().time()
        for letter in list(self._open):
            if letter.deadline_s > now_s:
                self._arm(letter)
                return
            self._report(letter, RetriableError("no report in time"), -1)

    def _report_all(self, reports: list[_Report]) -> None:
        for letter, error, offset in reports:
            self._report(letter, error, offset)

    def _report(self, letter: _Letter, error: ConnectorError | None, offset: int) -> None:
        if letter in self._open:
            del self._open[letter]
            self._moved.set()
            letter.delivered(error, offset)
