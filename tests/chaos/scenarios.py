"""What strikes workers and broker, whatever the applications do."""

import asyncio
from typing import Protocol

from tests.chaos.points import FENCED, Point
from tests.chaos.processes.site import Site
from tests.support.looks import lasting


class Struck(Protocol):
    """Applications at work on a site."""

    @property
    def site(self) -> Site:
        """Cluster and workers."""
        ...

    async def point(self, point: Point) -> None:
        """Waits until the protocol reaches a point."""
        ...

    async def progress(self) -> None:
        """Waits until every application has got on: what is needed works again."""
        ...


async def worker_killed(world: Struck, point: Point) -> None:
    """SIGKILL to the worker; another is started at once."""
    await world.point(point)
    await world.site.workers.pop(0).kill()
    await world.site.add_worker()


async def worker_killed_while_it_recovers(world: Struck, point: Point) -> None:
    """SIGKILL to the worker, and to the next one as soon as its fence is in the log."""
    await world.point(point)
    await world.site.workers.pop(0).kill()
    fence = asyncio.create_task(world.site.point(FENCED))
    doomed = asyncio.create_task(world.site.add_worker())
    await fence
    while not world.site.workers:
        await doomed
    await world.site.workers.pop(0).kill()
    await world.site.add_worker()


async def worker_stopped_past_its_session(world: Struck, point: Point) -> None:
    """SIGSTOP; the other worker fences it; it wakes up as a zombie and must acknowledge nothing."""
    await world.site.add_worker()
    await world.point(point)
    frozen = world.site.workers.pop(0)
    fenced = asyncio.create_task(world.site.point(FENCED))
    frozen.pause()
    await fenced
    await world.progress()
    frozen.resume()
    await world.progress()
    await frozen.kill()


async def worker_joins_and_leaves(world: Struck, point: Point) -> None:
    """A second worker comes and the first goes in good order: partitions move twice."""
    await world.point(point)
    await world.site.add_worker()
    leaving = world.site.workers.pop(0)
    leaving.terminate()
    assert await leaving.ended(30) == 0


async def broker_killed(world: Struck, point: Point) -> None:
    """SIGKILL to the broker, which starts again on the same data."""
    await world.point(point)
    await asyncio.to_thread(world.site.cluster.kill)
    await asyncio.to_thread(world.site.cluster.start)


async def broker_paused(world: Struck, point: Point) -> None:
    """SIGSTOP to the broker for some seconds: connections stay open, nothing answers."""
    await world.point(point)
    await asyncio.to_thread(world.site.cluster.pause)
    await lasting(world.site.random.uniform(1, 5))
    await asyncio.to_thread(world.site.cluster.resume)
