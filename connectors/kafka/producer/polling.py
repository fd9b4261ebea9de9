"""Who polls a producer: a thread, or the loop while many records are under way.

*Source*: measured: the client takes the interpreter's lock once for each delivery report, and a
thread that does so next to a busy loop keeps both waiting for each other.

*Invariants*: one of thread and loop polls at a time. The thread ends with its loop, also where the
application forgot to close the writer.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from confluent_kafka import Producer

_POLL_S = 0.1

_LOOP_POLL_S = 0.001
"""With many records under way reports come in crowds, and a millisecond later is soon enough."""

_REST_S = 1.0
"""A thread that rests looks so often whether there still is a loop."""

_FEW_S = 0.1
"""The thread polls again once fewer were under way for so long."""


class PolledWriter(Protocol):
    """The writer whose producer is polled."""

    def has_many(self) -> bool:
        """Whether so many records are under way that the loop polls."""
        ...

    def thread_polled(self) -> None:
        """The thread has polled once; on the thread."""
        ...

    def loop_polls(self, producer: Producer) -> None:
        """Polls without waiting; on the loop."""
        ...


class ProducerPolling:
    """Polls one producer until `end`. Belongs to the loop that makes it.

    Args:
        producer: is purged at the end of what no flush has waited for.
        writer: of the producer.
        name: of the thread.
    """

    def __init__(self, producer: Producer, writer: PolledWriter, name: str) -> None:
        self._producer = producer
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._many_at = 0.0
        self._thread_polls = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Has the thread poll."""
        self._thread.start()

    def call_loop(self, call: Callable[[], None]) -> None:
        """Calls from a thread; a loop that ended with its writer open has nobody to inform."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def end(self) -> None:
        """Has the thread end."""
        self._ending = True
        self._thread_polls.set()

    async def ended(self) -> None:
        """Waits for the end of the thread."""
        await asyncio.to_thread(self._thread.join)

    @property
    def _over(self) -> bool:
        """Whether nobody waits for reports any more."""
        return self._ending or self._loop.is_closed()

    def _run(self) -> None:
        producer, writer = self._producer, self._writer
        while not self._over:
            producer.poll(_POLL_S)
            writer.thread_polled()
            if writer.has_many():
                self._rest()
        if len(producer):
            producer.purge()
            producer.flush()

    def _rest(self) -> None:
        """Has the loop poll, until few records are under way."""
        self._thread_polls.clear()
        self.call_loop(self._begin_on_loop)
        while not (self._over or self._thread_polls.wait(_REST_S)):
            pass

    def _begin_on_loop(self) -> None:
        self._many_at = self._loop.time()
        self._poll_on_loop()

    def _poll_on_loop(self) -> None:
        """Polls on the loop, now and again in a millisecond, or has the thread go on."""
        if self._ending or self._loop.time() - self._many_at >= _FEW_S:
            self._thread_polls.set()
            return
        self._writer.loop_polls(self._producer)
        if self._writer.has_many():
            self._many_at = self._loop.time()
        self._loop.call_later(_LOOP_POLL_S, self._poll_on_loop)
