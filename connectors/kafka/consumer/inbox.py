"""Messages that a consumer's thread has read and the loop has not taken yet.

*Source*: connectors.ports, `LogReader.read`.

*Invariants*: batches leave in the order of arrival; a failure is raised only after the batches that
came before it; a `FatalError` is raised by every `take` until `clear`. Batches of an older
generation (assignment) are dropped.

To be used on the loop only, except for `count_in`, `has_space` and `wait_for_space`, which are
called on the consumer's thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Message

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.ports.records import EndReached

BYTES_MAX = 32 * 1024 * 1024
"""Most bytes of values that wait for a reader's caller, exceeded by one batch at most."""


Item = Message | EndReached
"""A record as the client returned it, or the event that the reader has met an end."""


class PolledBatch(NamedTuple):
    """The items that one poll of a consumer returned for one reader."""

    generation: int
    items: Sequence[Item]
    value_bytes: int


class Inbox:
    """The queue between a consumer's thread and a reader on the loop.

    Args:
        records_max: records that wait at most, exceeded by one batch.
        bytes_max: bytes of their values, also exceeded by one batch; at most `BYTES_MAX`.
    """

    def __init__(self, records_max: int, bytes_max: int = BYTES_MAX) -> None:
        self.generation = 0
        self._records_max = records_max
        self._bytes_max = min(bytes_max, BYTES_MAX)
        self._batches: deque[PolledBatch] = deque()
        self._away: RetriableError | None = None
        self._failure: FatalError | None = None
        self._closed: FatalError | None = None
        self._waiter: asyncio.Future[None] | None = None
        # Each counter is written by one thread only, so that neither needs a lock.
        self._sent_records = self._sent_bytes = 0
        self._taken_records = self._taken_bytes = 0
        self._space = threading.Event()

    async def take(self) -> Sequence[Item]:
        """The next batch; see `LogReader.read`."""
        assert self._waiter is None, "one read at a time"
        while True:
            if self._closed is not None:
                raise self._closed
            if self._batches:
                batch = self._batches.popleft()
                self._count_out(batch)
                return batch.items
            if self._failure is not None:
                raise self._failure
            if self._away is not None:
                away, self._away = self._away, None
                raise away
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def arrive(self, batch: PolledBatch) -> None:
        """Queues a batch; drops a batch of an older generation."""
        if batch.generation != self.generation:
            self._count_out(batch)
            return
        self._away = None
        self._batches.append(batch)
        self._wake()

    def put_back(self, items: Sequence[Item]) -> None:
        """Has the next `take` return items that have just been taken or fetched."""
        size_bytes = sum(len(it) for it in items if not isinstance(it, EndReached))
        batch = PolledBatch(self.generation, items, size_bytes)
        self._taken_records -= len(items)
        self._taken_bytes -= size_bytes
        self._batches.appendleft(batch)

    def away(self, error: RetriableError) -> None:
        """Has `take` raise that the broker is away: once, and only if no records come first."""
        self._away = error
        self._wake()

    def fail(self, generation: int, error: FatalError) -> None:
        """Has `take` raise that reading cannot go on; keeps the first failure of a generation."""
        if generation == self.generation and self._failure is None:
            self._failure = error
            self._wake()

    def next_generation(self) -> int:
        """Drops items that were not taken, or are on their way; returns the new generation."""
        self.generation += 1
        self.clear()
        return self.generation

    def clear(self) -> None:
        """Drops items that were not taken; items that arrive later are taken as before."""
        for batch in self._batches:
            self._count_out(batch)
        self._batches.clear()
        self._away = self._failure = None

    def close(self, error: FatalError) -> None:
        """Has the present and every later `take` raise `error`."""
        self.clear()
        self._closed = error
        self._wake()

    @property
    def is_read_up(self) -> bool:
        """Whether no item is queued or on its way, and no error is to be raised."""
        failure = self._closed or self._failure or self._away
        return failure is None and self._sent_records == self._taken_records

    def count_in(self, batch: PolledBatch) -> None:
        """Counts a batch that is on its way; called on the consumer's thread."""
        self._sent_records += len(batch.items)
        self._sent_bytes += batch.value_bytes

    def has_space(self) -> bool:
        """Whether the limits admit another batch; called on the consumer's thread."""
        return (
            self._sent_records - self._taken_records < self._records_max
            and self._sent_bytes - self._taken_bytes < self._bytes_max
        )

    def wait_for_space(self, timeout_s: float) -> bool:
        """Waits on the consumer's thread for space; False if there is none after the time-out."""
        if self.has_space():
            return True
        self._space.clear()
        if self.has_space():
            return True
        self._space.wait(timeout_s)
        return self.has_space()

    def _count_out(self, batch: PolledBatch) -> None:
        self._taken_records += len(batch.items)
        self._taken_bytes += batch.value_bytes
        self._space.set()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
