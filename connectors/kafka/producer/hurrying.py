"""Makes a producer send its records without lingering, when a caller waits for them.

*Source*: librdkafka has no call to send now, but does not linger while a flush is under way. The
flush runs on its own thread, because the polling thread cannot be interrupted.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import Producer

_HURRY_S = 0.001
"""How long the client's own thread takes to see that a flush is under way."""


class Hurrier:
    """Hurries one producer; to be used on the event loop only.

    Args:
        producer: a producer that lingers.
        name: name of the flushing thread.
    """

    def __init__(self, producer: Producer, name: str) -> None:
        self._producer = producer
        self._due = False
        self._executor = ThreadPoolExecutor(1, name)

    def hurry(self) -> None:
        """Makes the producer send its queued records."""
        if not self._due:
            self._due = True
            self._executor.submit(self._send_now)

    async def close(self) -> None:
        """Waits until the thread has ended."""
        await asyncio.to_thread(self._executor.shutdown)

    def _send_now(self) -> None:
        self._due = False
        self._producer.flush(_HURRY_S)
