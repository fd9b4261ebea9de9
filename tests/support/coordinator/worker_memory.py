"""The worker on the memory broker, and waiting for what it does."""

import asyncio
from collections.abc import Callable

from stilltide.pipeline.drivers.buffered_log.owned_log import EntryQueue
from stilltide.pipeline.testing.worker import PARTITIONS, MemoryWorker

__all__ = ["PARTITIONS", "WAIT_S", "EntryQueue", "MemoryWorker", "until"]

WAIT_S = 10.0
"""Time-out for changes that take milliseconds."""


async def until(holds: Callable[[], object]) -> None:
    """Lets the loop run until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - the condition has no event, and the broker no thread
            await asyncio.sleep(0)
