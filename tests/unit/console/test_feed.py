"""The state that viewers share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stilltide.pipeline.console.feed import Feed
from stilltide.pipeline.core.status.values import SystemStatus
from tests.support.status.samples import WELL


class Asked:
    """Counts how often a state is collected, and holds the collector back if asked to."""

    def __init__(self) -> None:
        self.count = 0
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def collect(self, _patience_s: float) -> SystemStatus:
        """The state."""
        self.count += 1
        self.began.set()
        await self.goes_on.wait()
        return WELL


@asynccontextmanager
async def fed(asked: Asked, **options: Any) -> AsyncIterator[Feed]:
    """A feed that runs during the block."""
    feed = Feed(asked.collect, **options)
    running = asyncio.create_task(feed.run())
    yield feed
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_all_viewers_share_a_state():
    """Twenty viewers wait for the same state, which is collected once."""
    asked = Asked()
    async with fed(asked, every_s=3600) as feed:
        shots = await asyncio.gather(*(feed.now() for _ in range(20)))
        assert {id(it) for it in shots} == {id(shots[0])}
        assert (await feed.now()) is shots[0]
        assert asked.count == 1


async def test_states_follow_each_other():
    """A viewer gets each state once, in order."""
    async with fed(Asked(), every_s=0.001) as feed:
        numbers = [(await feed.now()).number]
        while len(numbers) < 4:
            numbers.append((await feed.after(numbers[-1])).number)
        assert numbers == sorted(set(numbers))


async def test_without_a_viewer_a_state_is_collected_rarely():
    """Once in `rest_s`, before the first viewer and once the last one has been gone for a while."""
    asked = Asked()
    async with fed(asked, every_s=0.001, idle_s=0.0, rest_s=3600):
        for _ in range(10):
            await asyncio.sleep(0)
        assert asked.count == 0
    async with fed(asked, every_s=0.001, idle_s=0.0, rest_s=3600) as feed:
        first = await feed.now()
        second = await feed.after(first.number)
        assert second.number == asked.count == first.number + 1
    asked = Asked()
    async with fed(asked, every_s=0.001, rest_s=0.001):
        await asked.began.wait()


async def test_a_viewer_who_leaves_takes_nobody_along():
    """The others still get the state."""
    asked = Asked()
    asked.goes_on.clear()
    async with fed(asked, every_s=0.001) as feed:
        leaves, stays = (asyncio.create_task(feed.now()) for _ in range(2))
        await asked.began.wait()
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        asked.goes_on.set()
        assert (await stays).number >= 1


async def test_a_collector_that_fails_ends_the_feed():
    """A fault of ours is not hidden behind a page that never changes."""

    async def collect(_patience_s: float) -> SystemStatus:
        raise ZeroDivisionError

    feed = Feed(collect)
    running = asyncio.create_task(feed.run())
    asking = asyncio.create_task(feed.now())
    done, _ = await asyncio.wait([running])
    assert isinstance(done.pop().exception(), ZeroDivisionError)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
