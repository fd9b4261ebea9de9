"""Polls a producer on a thread, or on the loop while many records are under way.

*Source*: measured. The client takes the interpreter's lock once for each delivery report, so that a
polling thread and a busy loop wait for each other.

*Invariants*: either the thread or the loop polls, never both. The thread ends when its loop is
closed, even if the application did not close the writer.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from confluent_kafka import KafkaException, Producer

_POLL_S = 0.1

_LOOP_POLL_S = 0.001
"""Time between two polls on the loop; with many records under way, reports come in groups."""

_REST_S = 1.0
"""Time after which a resting thread looks whether its loop is closed."""

_FEW_S = 0.1
"""Time with few records under way after which the thread polls again."""


class PolledWriter(Protocol):
    """The writer whose producer is polled."""

    def has_many(self) -> bool:
        """Whether so many records are under way that the loop polls."""
        ...

    def thread_polled(self) -> None:
        """Called on the thread after each poll of the thread."""
        ...

    def loop_polls(self, producer: Producer) -> None:
        """Polls without waiting; called on the loop."""
        ...


class ProducerPolling:
    """Polls one producer until `end`. To be used on the event loop that makes it only.

    Args:
        producer: the producer, which is purged of undelivered records at the end.
        writer: the writer that uses the producer.
        name: name of the polling thread.
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
        """Starts the thread."""
        self._thread.start()

    def call_loop(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop; does nothing if the loop was closed before the writer."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def end(self) -> None:
        """Makes the thread end."""
        self._ending = True
        self._thread_polls.set()

    async def ended(self) -> None:
        """Waits for the end of the thread."""
        await asyncio.to_thread(self._thread.join)

    @property
    def _over(self) -> bool:
        """Whether no caller waits for reports any more."""
        return self._ending or self._loop.is_closed()

    def _run(self) -> None:
        producer, writer = self._producer, self._writer
        while not self._over:
            with suppress(KafkaException):  # a fatal error; the reports of all records follow
                producer.poll(_POLL_S)
            writer.thread_polled()
            if writer.has_many():
                self._rest()
        if len(producer):
            producer.purge()
            producer.flush()

    def _rest(self) -> None:
        """Lets the loop poll until few records are under way."""
        self._thread_polls.clear()
        self.call_loop(self._begin_on_loop)
        while not (self._over or self._thread_polls.wait(_REST_S)):
            pass

    def _begin_on_loop(self) -> None:
        self._many_at = self._loop.time()
        self._poll_on_loop()

    def _poll_on_loop(self) -> None:
        """Polls on the loop now and every millisecond, or lets the thread poll again."""
        if self._ending or self._loop.time() - self._many_at >= _FEW_S:
            self._thread_polls.set()
            return
        self._writer.loop_polls(self._producer)
        if self._writer.has_many():
            self._many_at = self._loop.time()
        self._loop.call_later(_LOOP_POLL_S, self._poll_on_loop)
