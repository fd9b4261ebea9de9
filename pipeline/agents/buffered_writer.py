"""The buffered-writer agent: one channel event per entry, written in order.

*Source*: protocols.md A; facts, faust.md 2 and 9 (an event per batch costs 7 us, an event per
record would cap the log at 64 k records/s).
"""

import asyncio
from collections import deque
from typing import Any

import faust

from stilltide.pipeline.core.buffered_log.accumulator import WriteEntry
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog

Submitted = tuple[OwnedLog, WriteEntry]


class BufferedWriter:
    """Takes entries from the logs this worker owns and writes them through a Faust agent.

    Entries are bounded by what the accumulators keep in flight: in eager mode one per log and
    per `delay_ms_max`.
    """

    def __init__(self, app: faust.App) -> None:
        self._channel: Any = app.channel()  # takes raw objects, though typed for events
        self._submitted: deque[Submitted] = deque()
        self._wake = asyncio.Event()
        app.agent(self._channel, name="buffered-writer")(self._write)

    def submit(self, log: OwnedLog, entry: WriteEntry) -> None:
        """Hands one entry over; entries of a log are written in the order they are handed over."""
        self._submitted.append((log, entry))
        self._wake.set()

    async def run(self) -> None:
        """Feeds the channel until cancelled; a channel takes events only from a coroutine."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._submitted:
                await self._channel.put(self._submitted.popleft())

    async def _write(self, stream: Any) -> None:
        async for log, entry in stream:
            await log.write_entry(entry)
