"""Scans ranges of logs one after the other, and holds a reader only while ranges come.

*Source*: measured. The threads of a reader, about five, look for orders and answers also while the
reader waits for its next range.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import LogReader
from stilltide.connectors.ports.records import Fetching, Record
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.schemas.values import OffsetRange

REST_S = 10.0
"""Time after a scan until its reader is closed; a new one takes some hundredths of a second."""


class RestingScans:
    """Scans of one cluster; used on one event loop.

    Args:
        connector: the cluster.
        client_id: name of the reader at the brokers.
    """

    def __init__(self, connector: Connector, client_id: str) -> None:
        self._connector = connector
        self._client_id = client_id
        self._scanning = asyncio.Lock()
        self._reader: LogReader | None = None
        self._rest: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def scan(self, read: OffsetRange) -> AsyncGenerator[list[Record], None]:
        """The records of a range, as `log_scan.scan`; waits for scans that began before."""
        async with self._scanning:
            self._end_rest()
            if self._reader is None:
                self._reader = self._connector.reader(self._client_id, fetching=Fetching.SCANNING)
            try:
                async with aclosing(scan(self._reader, [read])) as batches:
                    async for records in batches:
                        yield records
            finally:
                self._rest = asyncio.get_running_loop().call_later(REST_S, self._rested)

    async def close(self) -> None:
        """Releases the reader; no scan may be under way."""
        self._end_rest()
        self._rested()
        if self._closing is not None:
            await self._closing

    def _end_rest(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None

    def _rested(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            self._closing = asyncio.create_task(_closed(reader, self._closing))


async def _closed(reader: LogReader, earlier: "asyncio.Task[None] | None") -> None:
    """Closes a reader after the one before it."""
    if earlier is not None:
        await earlier
    await reader.close()
