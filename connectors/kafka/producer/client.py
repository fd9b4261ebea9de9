"""One producer with the threads that poll and flush it, from its making to its end.

*Invariants*: each record that the producer was given is reported before `end` returns. The producer
is destroyed on a thread of its own, since its destructor joins the client's threads.

Makes a producer send its records without lingering, when a caller waits for them.

*Source*: librdkafka has no call to send now, but does not linger while a flush is under way. The
flush runs on its own thread, because the polling thread cannot be interrupted.

Polls the producer on a thread, or on the loop while many records are under way.

*Source*: measured. The client takes the interpreter's lock once for each delivery report, so that a
polling thread and a busy loop wait for each other.

*Invariants*: either the thread or the loop polls, never both. The thread ends when its loop is
closed, even if the application did not close the writer.

Replaces the producer of a writer once the producer has lost its brokers for good.

*Source*: librdkafka's issues 5301 and 5511 (docs/internals/kafka-clients.md): a client may stop to
look for its brokers, and then fails every record for ever.

*Invariants*: a producer is replaced only while another one finds a broker that it does not find: a
broker that is away ends no producer, whose younger records may still be written in order. What the
replaced producer holds is reported as failed, so that no record is written behind later ones.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from confluent_kafka import KafkaException, Producer

from stilltide.connectors.kafka.logs import LOGGER

_HURRY_S = 0.001
"""How long the client's own thread takes to see that a flush is under way."""


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


class ProducerClient:
    """A producer, polled from `start` to `end`. To be used on one event loop.

    Args:
        producer: the producer, which is purged of undelivered records at the end; nobody else may
            keep it.
        name: name of the threads.
        lingers: whether the producer waits for more records before it sends some.
    """

    _writer: PolledWriter
    _loop: asyncio.AbstractEventLoop

    def __init__(self, producer: Producer, name: str, *, lingers: bool) -> None:
        self._producer: Producer | None = producer
        self._name = name
        self._flusher = ThreadPoolExecutor(1, f"{name}-flush") if lingers else None
        self._flush_due = False
        self._thread: threading.Thread | None = None
        self._many_at = 0.0
        self._thread_polls = threading.Event()
        self._ending = False

    @property
    def producer(self) -> Producer:
        """The producer, until `end`."""
        assert self._producer is not None
        return self._producer

    @property
    def started(self) -> bool:
        """Whether the producer is polled."""
        return self._thread is not None

    def start(self, writer: PolledWriter) -> None:
        """Begins to poll; the reports go to the writer."""
        self._writer, self._loop = writer, asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def flush_soon(self) -> None:
        """Makes the producer send its queued records without lingering."""
        if self._flusher is not None and not self._flush_due:
            self._flush_due = True
            self._flusher.submit(self._send_now)

    async def finds_broker(self, timeout_s: float) -> bool:
        """Whether the producer gets an answer of any broker.

        Args:
            timeout_s: time-out of the question.
        """
        try:
            await asyncio.to_thread(self.producer.list_topics, timeout=timeout_s)
        except KafkaException:
            return False
        return True

    def call_loop(self, call: Callable[[], None]) -> None:
        """Runs `call` on the loop, from any thread; does nothing if the loop was closed before."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    async def end(self) -> None:
        """Reports what was not delivered as failed, and destroys the producer; may be repeated."""
        self._ending = True
        self._thread_polls.set()
        if self._flusher is not None:
            await asyncio.to_thread(self._flusher.shutdown)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._destroy)

    def _destroy(self) -> None:
        self._producer = self._thread = None

    def _send_now(self) -> None:
        self._flush_due = False
        self.producer.flush(_HURRY_S)

    @property
    def _over(self) -> bool:
        """Whether no caller waits for reports any more."""
        return self._ending or self._loop.is_closed()

    def _run(self) -> None:
        producer, writer = self.producer, self._writer
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
        self._writer.loop_polls(self.producer)
        if self._writer.has_many():
            self._many_at = self._loop.time()
        self._loop.call_later(_LOOP_POLL_S, self._poll_on_loop)


class KeptClient:
    """The client of one writer. To be used on one event loop.

    Args:
        make: makes a client that is not started.
        start: starts the client that takes the place of the one before.
        request_timeout_s: time-out of each question whether a client finds a broker.
        name: the writer's name in the log.

    Attributes:
        client: the client now.
    """

    def __init__(
        self,
        make: Callable[[], ProducerClient],
        start: Callable[[ProducerClient], None],
        request_timeout_s: float,
        name: str,
    ) -> None:
        self.client = make()
        self._make = make
        self._start = start
        self._timeout_s = request_timeout_s
        self._name = name
        self._looking: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Called when a record has timed out: replaces the client if it is lost."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._replace_if_lost(self.client))

    async def looked(self) -> None:
        """Returns once no look is under way."""
        if self._looking is not None:
            await asyncio.wait([self._looking])

    async def close(self) -> None:
        """Ends the client; everything that it was given is reported then."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.client.end()

    async def _replace_if_lost(self, client: ProducerClient) -> None:
        if await client.finds_broker(self._timeout_s):
            return
        spare = self._make()
        try:
            # The broker may have come back between two questions: the first client is asked again.
            if await spare.finds_broker(self._timeout_s) and not await client.finds_broker(
                self._timeout_s
            ):
                client, spare, self.client = spare, client, spare
                self._start(client)
                LOGGER.log(
                    logging.WARNING,
                    "writer %s goes on with a new client: the one before finds no broker any more",
                    self._name,
                )
        finally:
            await asyncio.shield(asyncio.ensure_future(spare.end()))
