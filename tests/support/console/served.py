"""The console with states that a test chooses, without any broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from stilltide.pipeline.agents.web_guard import WebAccess
from stilltide.pipeline.console.feed import Feed
from stilltide.pipeline.console.server import LIMITS, ConsoleServer, ViewerAccess
from stilltide.pipeline.core.status.asks import Answers, Ask
from stilltide.pipeline.core.status.samples import Samples
from stilltide.pipeline.core.status.values import SystemStatus
from tests.support.console.answers import Answering, answering, unread


class Served:
    """A console that shows `status`.

    Attributes:
        status: what the console shows from its next state on.
        url: its address, which ends in a slash.
        answer: what answers questions of a page.
        collected: how often a state was asked for.
    """

    def __init__(self, status: SystemStatus, answer: Answering) -> None:
        self.status = status
        self.answer = answer
        self.url = ""
        self.collected = 0

    async def collect(self, _patience_s: float) -> SystemStatus:
        """The state, as a collector gives it."""
        self.collected += 1
        return self.status

    async def answers(self, asks: Sequence[Ask], patience_s: float) -> Answers:
        """The answers, as `Looks` gives them."""
        return await answering(self.answer)(asks, patience_s)


@asynccontextmanager
async def served(
    status: SystemStatus,
    *,
    answer: Answering = unread,
    token: str | None = None,
    every_s: float = 0.05,
    idle_s: float = 30.0,
    samples: Samples | None = None,
) -> AsyncIterator[Served]:
    """Serves the console on a free port during the block."""
    shown = Served(status, answer)
    feed = Feed(shown.collect, every_s=every_s, idle_s=idle_s, samples=samples)
    access = ViewerAccess(token)
    server = ConsoleServer(feed, shown.answers, access, hosts=WebAccess(), limits=LIMITS)
    running = asyncio.create_task(feed.run())
    try:
        shown.url = await server.start("127.0.0.1", 0)
        yield shown
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await server.close()
