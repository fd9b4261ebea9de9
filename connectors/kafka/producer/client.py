"""One producer with the threads that poll and hurry it, from its making to its end.

*Invariants*: each record that the producer was given is reported before `end` returns. The producer
is destroyed on a thread of its own, since its destructor joins the client's threads.
"""

import asyncio
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from stilltide.connectors.kafka.producer.hurrying import Hurrier
from stilltide.connectors.kafka.producer.polling import PolledWriter, ProducerPolling


class ProducerClient:
    """A producer, polled from `start` to `end`. To be used on one event loop.

    Args:
        producer: the producer; nobody else may keep it.
        name: name of the threads.
        lingers: whether the producer waits for more records before it sends some.
    """

    def __init__(self, producer: Producer, name: str, *, lingers: bool) -> None:
        self._producer: Producer | None = producer
        self._name = name
        self._hurrier = Hurrier(producer, f"{name}-hurry") if lingers else None
        self._polling: ProducerPolling | None = None

    @property
    def producer(self) -> Producer:
        """The producer, until `end`."""
        assert self._producer is not None
        return self._producer

    @property
    def started(self) -> bool:
        """Whether the producer is polled."""
        return self._polling is not None

    def start(self, writer: PolledWriter) -> None:
        """Begins to poll; the reports go to the writer."""
        self._polling = ProducerPolling(self.producer, writer, self._name)
        self._polling.start()

    def hurry(self) -> None:
        """Makes the producer send its queued records without lingering."""
        if self._hurrier is not None:
            self._hurrier.hurry()

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
        """Runs `call` on the loop on which the client was started, from any thread."""
        assert self._polling is not None
        self._polling.call_loop(call)

    async def end(self) -> None:
        """Reports what was not delivered as failed, and destroys the producer; may be repeated."""
        if self._polling is not None:
            self._polling.end()
        if self._hurrier is not None:
            await self._hurrier.close()
        if self._polling is not None:
            await self._polling.ended()
        await asyncio.to_thread(self._destroy)

    def _destroy(self) -> None:
        self._producer = self._hurrier = self._polling = None
