"""Sends the records of a producer without lingering, when somebody waits for them.

*Source*: librdkafka has no call for that; it lingers no more while a flush is under way. The flush
runs on a thread of its own, because the thread that polls cannot be interrupted.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

_HURRY_S = 0.001
"""How long the client's own thread takes to see that a flush is under way."""


class Hurrier:
    """Hurries one producer; belongs to the loop.

    Args:
        producer: lingers, or there is nothing to do.
        name: of the thread.
    """

    def __init__(self, producer: Producer, name: str) -> None:
        self._producer = producer
        self._due = False
        self._executor = ThreadPoolExecutor(1, name)

    def hurry(self) -> None:
        """Has the producer send what it holds."""
        if not self._due:
            self._due = True
            self._executor.submit(self._send_now)

    async def close(self) -> None:
        """Waits until the thread has ended."""
        await asyncio.to_thread(self._executor.shutdown)

    def _send_now(self) -> None:
        self._due = False
        self._producer.flush(_HURRY_S)
