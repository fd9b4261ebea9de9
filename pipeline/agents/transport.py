"""Faust's Kafka transport, on the worker's own loop and with a fetch that keeps no request waiting.

Faust runs aiokafka on a loop and a thread of its own, so that slow agents cannot hold up its
heartbeats. Ours hold the loop up for 30 ms at most, and a batch of requests crossed over four
times: with 32 transactions at once that cost one in seven.

aiokafka has one fetch under way per broker. While records of one partition lie unread for 0.1 s,
as under load, it fetches the others alone; no matter what arrives meanwhile, that fetch rests for
its whole waiting time, which Faust has fixed at 1.5 s.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from faust.transport.drivers import aiokafka
from mode.utils.futures import maybe_async

FETCH_WAIT_MS = 50


class _ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """A service thread without a thread: all that would be called over there is called here."""

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, thread_loop=asyncio.get_running_loop(), **options)

    async def start(self) -> None:
        self._thread_started.set()
        await self._default_start()

    async def stop(self) -> None:
        if self._started.is_set() and not self._stopped.is_set():
            self._stopped.set()
            await self._shutdown_thread()

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await maybe_async(fun(*args, **options))

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer: Any = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_WAIT_MS  # noqa: SLF001 - Faust has no setting for it
        return consumer


class _Consumer(aiokafka.Consumer):
    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class PromptTransport(aiokafka.Transport):
    """Waits for at most `FETCH_WAIT_MS` in each fetch, and for no other thread."""

    Consumer = _Consumer
