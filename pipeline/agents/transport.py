"""Faust's Kafka transport on the worker's own loop, with fetches that do not delay requests.

Faust runs aiokafka on its own loop and thread, so that slow agents cannot delay heartbeats. The
worker's agents hold the loop for 30 ms at most, and each batch of requests crossed four times
between the loops: with 32 transactions at once that cost a seventh of the throughput.

aiokafka has one fetch under way for each broker. While records of one partition are unread for
0.1 s, as under load, the fetch covers the other partitions only. Requests that arrive meanwhile
wait until that fetch ends, after the whole waiting time, which Faust has fixed at 1.5 s.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from faust.transport.drivers import aiokafka
from mode.utils.futures import maybe_async

FETCH_WAIT_MS = 50


_LOGGER = logging.getLogger("faust.transport")
"""Else Faust logs under the name of this module, as if the lines were ours."""


class _ConsumerThread(aiokafka.AIOKafkaConsumerThread):
    """A service thread without a thread: runs the calls for that thread on the worker's loop."""

    logger = _LOGGER

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
    logger = _LOGGER

    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon)


class PromptTransport(aiokafka.Transport):
    """A transport whose fetches wait `FETCH_WAIT_MS` at most, and that uses no other thread."""

    Consumer = _Consumer
