"""Hands entries of logs to the producer, in order.

*Source*: docs/protocols A. A worker's queue is an agent (`pipeline/agents/buffered_writer.py`).
"""

import asyncio
from typing import Protocol

from stilltide.pipeline.core.buffered_log.accumulator import WriteEntry
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog


class EntryWriter(Protocol):
    """Writes the entries of the logs that this worker owns."""

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Queues one entry; the entries of a log are written in the order of these calls."""
        ...

    async def run(self) -> None:
        """Writes until cancelled."""
        ...


class EntryQueue:
    """An `EntryWriter` without an agent."""

    def __init__(self) -> None:
        self._entries: asyncio.Queue[tuple[OwnedLog, WriteEntry]] = asyncio.Queue()

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Queues one entry."""
        self._entries.put_nowait((log, entry))

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            log, entry = await self._entries.get()
            await log.write_entry(entry)
