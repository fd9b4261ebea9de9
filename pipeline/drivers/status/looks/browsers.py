"""Browsers of topics, shared by all windows of a topic: each has several clients of Kafka.

*Source*: docs/console.md.

*Invariants*: few windows are read at the same time, each by a browser that nobody else uses
meanwhile; few browsers wait for their next window, however many windows are asked for.
"""

import asyncio
import gc
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.drivers.read_committed.browse import RecordBrowser
from stilltide.schemas.values import ClusterName

READING_MAX = 1
"""Windows that are read at the same time; each may hold `WINDOW_BYTES` of records. If there were
more, the browsers of one topic would have to be told apart."""

WAITING_MAX = 2
"""Browsers that wait; a further one takes the place of the one that has waited longest."""

BrowserKey = tuple[ClusterName, str]
"""A cluster, and a topic of it."""


class RecordBrowsers:
    """Lends browsers; `close` must be called at the end.

    Args:
        idle_s: seconds after which a browser that waits is closed by `sweep`.
    """

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._room = asyncio.Semaphore(READING_MAX)
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: OrderedDict[BrowserKey, tuple[RecordBrowser, float]] = OrderedDict()

    def __len__(self) -> int:
        """How many browsers wait."""
        return len(self._waiting)

    @asynccontextmanager
    async def browser(
        self, key: BrowserKey, connector: Connector, admin: LogAdmin
    ) -> AsyncIterator[RecordBrowser]:
        """A browser of the topic for the length of the block, in turn."""
        async with self._room:
            if self._closing:  # their clients take memory until they are closed
                await asyncio.wait(self._closing)
            kept = self._waiting.pop(key, None)
            browser = RecordBrowser(connector, admin, key[1]) if kept is None else kept[0]
            try:
                yield browser
            except BaseException:  # what its readers have begun is not known
                self._end(browser)
                raise
            # Readers and what they have read refer to each other. The collector counts objects, and
            # would let megabytes of records lie that are few objects.
            gc.collect()
            self._waiting[key] = browser, asyncio.get_running_loop().time()
            while len(self._waiting) > WAITING_MAX:
                self._end(self._waiting.popitem(last=False)[1][0])

    def sweep(self) -> None:
        """Closes the browsers that have waited for too long."""
        until_s = asyncio.get_running_loop().time() - self._idle_s
        for key, (browser, since_s) in list(self._waiting.items()):
            if since_s < until_s:
                del self._waiting[key]
                self._end(browser)

    async def close(self) -> None:
        """Closes all browsers; nobody may use one any more."""
        while self._waiting:
            self._end(self._waiting.popitem()[1][0])
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _end(self, browser: RecordBrowser) -> None:
        """Closes a browser whatever happens to the caller, who may be cancelled."""
        task = asyncio.create_task(browser.close(), name="close-browser")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
