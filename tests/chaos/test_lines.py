"""Transactions by direct lines that are cut at named points (J).

`make chaos ARGS="-k lines"` runs this file alone. What is checked is in `World.check`: no
acknowledged outcome is lost or doubled.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.chaos.processes.line_cutter import Cut, LineCutter
from tests.chaos.processes.site import POINT_S
from tests.chaos.world import World

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))


class Lines:
    """A world whose workers are reached by lines that can be cut."""

    def __init__(self, world: World, stack: AsyncExitStack) -> None:
        self.world = world
        self._stack = stack
        self._cutters: list[LineCutter] = []

    async def add_worker(self) -> None:
        """Another worker with lines, serving."""
        cutter = await self._stack.enter_async_context(LineCutter())
        await self.world.site.add_worker(cutter.settings)
        self._cutters.append(cutter)

    async def remove_worker(self) -> None:
        """SIGKILL to the first worker."""
        await self.world.site.workers.pop(0).kill()
        del self._cutters[: len(self._cutters) - len(self.world.site.workers)]

    async def cut(self, where: Cut) -> None:
        """Cuts a line of whichever worker has one first."""
        cuts = [asyncio.create_task(one.cut(where)) for one in self._cutters]
        async with asyncio.timeout(POINT_S):
            await asyncio.wait(cuts, return_when=asyncio.FIRST_COMPLETED)
        for one in cuts:
            one.cancel()


@pytest.fixture
async def lines(
    cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Lines]:
    """A world with one worker that takes lines, of this test's own seed."""
    seed = SEED * 1000 + request.node.callspec.indices["where"]
    async with AsyncExitStack() as stack:
        world = World(cluster, tmp_path, seed)
        lines = Lines(world, stack)
        await stack.enter_async_context(world)
        await lines.add_worker()
        await lines.remove_worker()  # the one that a site begins with takes no lines
        yield lines


@pytest.mark.parametrize("where", Cut, ids=str)
async def test_every_transaction_ends_as_it_was_told(lines: Lines, where: Cut):
    """J1, J3: a line that is cut, and after it the worker at its end: nothing lost or doubled."""
    world = lines.world
    for _ in range(2):
        await world.add_application()
    await world.progress()
    for _ in range(ROUNDS):
        await lines.cut(where)
        await world.progress()
        await lines.cut(where)
        await lines.add_worker()
        await lines.remove_worker()
        await world.progress()
    await world.settle()
    await world.check()
