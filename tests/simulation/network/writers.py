"""A writer whose records travel from a simulated process to a broker."""

import asyncio
from collections import deque
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, FatalError, RetriableError
from stilltide.connectors.memory.writer import RECORD_BYTES_MAX, MemoryWriter
from stilltide.connectors.ports.writers import Delivered, NewHeaders
from stilltide.schemas.values import TopicPartition
from tests.simulation.network.paths import Path

DELIVERY_S = 8.0
"""Time after which a record without a report is reported as unknown."""


class _Letter(NamedTuple):
    data: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: NewHeaders | None
    delivered: Delivered
    deadline_s: float


class NetworkWriter:
    """A `LogWriter` whose records travel in batches, in the order of `append`."""

    def __init__(self, inner: MemoryWriter, path: Path, records_max: int) -> None:
        self._inner = inner
        self._path = path
        self._records_max = records_max
        self._letters: deque[_Letter] = deque()
        self._open: dict[int, _Letter] = {}  # without a report, in order
        self._number = 0
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
        loop = asyncio.get_running_loop()
        letter = _Letter(
            data, value, key, headers and list(headers), delivered, loop.time() + DELIVERY_S
        )
        self._number += 1
        self._open[self._number] = letter
        self._letters.append(letter)
        if not self._timer_armed:
            self._arm(letter)
        if not self._carrying:
            self._carrying = True
            self._path.carry(self._carry())

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
        for number in list(self._open):
            self._report(number, RetriableError("the writer was closed"), -1)

    async def _moving(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    async def _carry(self) -> None:
        """Carries batches to the broker, one after the other."""
        loop = asyncio.get_running_loop()
        while self._letters:
            await self._path.to()
            batch, self._letters = self._letters, deque()
            numbers = {id(letter): number for number, letter in self._open.items()}
            for letter in batch:
                number = numbers.get(id(letter))
                if number is None or letter.deadline_s <= loop.time():
                    self._note(letter, "is never written")
                    continue  # reported as late
                self._inner.append(
                    letter.data,
                    letter.value,
                    self._answering(number, letter),
                    key=letter.key,
                    headers=letter.headers,
                )
        self._carrying = False

    def _note(self, letter: _Letter, text: str) -> None:
        if self._path.trace.on:
            value = (letter.value or b"")[:24]
            self._path.trace.note(self._path.process.name, f"{letter.data} {value!r} {text}")

    def _answering(self, number: int, letter: _Letter) -> Delivered:
        def delivered(error: ConnectorError | None, offset: int) -> None:
            self._note(letter, f"is at {offset}" if error is None else f"has no report: {error}")
            if self._path.from_open:
                self._path.tell(self._report, number, error, offset)
            else:
                self._path.carry(self._answer(number, error, offset))

        return delivered

    async def _answer(self, number: int, error: ConnectorError | None, offset: int) -> None:
        await self._path.back()
        self._path.tell(self._report, number, error, offset)

    def _arm(self, oldest: _Letter) -> None:
        self._timer_armed = True
        asyncio.get_running_loop().call_at(
            oldest.deadline_s, self._late, context=self._path.process.context
        )

    def _late(self) -> None:
        """Reports what is too late, and waits for the next deadline."""
        self._timer_armed = False
        now_s = asyncio.get_running_loop().time()
        for number, letter in list(self._open.items()):
            if letter.deadline_s > now_s:
                self._arm(letter)
                return
            self._report(number, RetriableError("no report in time"), -1)

    def _report(self, number: int, error: ConnectorError | None, offset: int) -> None:
        letter = self._open.pop(number, None)
        if letter is not None:
            self._moved.set()
            letter.delivered(error, offset)
