"""Faust's Kafka transport, with a fetch that does not keep requests waiting.

aiokafka has one fetch under way per broker. While records of one partition lie unread for 0.1 s,
as under load, it fetches the others alone; no matter what arrives meanwhile, that fetch rests for
its whole waiting time, which Faust has fixed at 1.5 s.
"""

from typing import Any

from faust.transport.drivers import aiokafka

FETCH_WAIT_MS = 50


class _ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer: Any = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS  # noqa: SLF001 - Faust has no setting for it
        return consumer


class _Consumer(aiokafka.Consumer):
    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class PromptTransport(aiokafka.Transport):
    """Waits for at most `FETCH_WAIT_MS` in each fetch."""

    Consumer = _Consumer
