"""Acknowledgements under fault: each scenario at points drawn from a printed seed.

*Source*: rules B, C4, G. `make chaos ARGS="-k acknowledged"` runs it; `SEED=7` draws other
points, `ROUNDS=6` strikes at all of them. What is checked is in `AckWorld.check` and `AckHistory`;
processes must hold no more threads, files and memory after a scenario than they need.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.chaos.pending_ack.world import AckWorld
from tests.chaos.points import ACK_POINTS, CLAIMED, TO_SETTLE, Point
from tests.chaos.scenarios import (
    broker_killed,
    broker_paused,
    worker_joins_and_leaves,
    worker_killed,
    worker_killed_while_it_recovers,
    worker_stopped_past_its_session,
)
from tests.support.processes.child import Held

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
HELD_MAX = Held(rss_kib=300 * 1024, threads=180, descriptors=400)

Scenario = Callable[[AckWorld, Point], Awaitable[None]]


async def member_killed(world: AckWorld, point: Point) -> None:
    """SIGKILL to a member; what it left open is aborted by its time-out."""
    await world.point(point)
    await world.members.pop(0).kill()
    await world.add_member()


async def member_stopped_past_its_session(world: AckWorld, point: Point) -> None:
    """SIGSTOP; another one claims its partitions; it wakes up with messages that are not its."""
    await world.point(point)
    frozen = world.members.pop(0)
    claimed = asyncio.create_task(world.site.point(CLAIMED))
    frozen.pause()
    await claimed
    await world.progress()
    frozen.resume()
    world.members.append(frozen)
    await world.progress()


async def member_joins_and_leaves(world: AckWorld, point: Point) -> None:
    """A member comes and another goes in good order: partitions move twice."""
    await world.point(point)
    await world.add_member()
    await world.remove_member()


async def member_and_worker_killed(world: AckWorld, point: Point) -> None:
    """SIGKILL to both: the next owner is asked by the next member, and by it alone."""
    await world.point(point)
    await asyncio.gather(world.members.pop(0).kill(), world.site.workers.pop(0).kill())
    await asyncio.gather(world.add_member(), world.site.add_worker())


async def worker_killed_that_settles_with_another(world: AckWorld, point: Point) -> None:
    """SIGKILL to one of two workers, between the end of a transaction here and there."""
    await world.point(point)
    await world.site.add_worker()
    await world.site.point(TO_SETTLE)
    await world.site.workers.pop(0).kill()


SCENARIOS: list[Scenario] = [
    member_killed,
    member_stopped_past_its_session,
    member_joins_and_leaves,
    member_and_worker_killed,
    worker_killed,
    worker_killed_while_it_recovers,
    worker_stopped_past_its_session,
    worker_joins_and_leaves,
    broker_killed,
    broker_paused,
    worker_killed_that_settles_with_another,
]


@pytest.fixture
async def world(
    cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[AckWorld]:
    """A world of this scenario's own seed."""
    seed = SEED * 1000 + request.node.callspec.indices["scenario"] * 100
    async with AckWorld(cluster, tmp_path, seed) as world:
        yield world


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
async def test_each_message_is_acknowledged_with_its_copy(world: AckWorld, scenario: Scenario):
    """Whatever strikes, whenever: one visible copy of each message, or it is delivered again."""
    points = world.site.random.sample(ACK_POINTS, k=min(ROUNDS, len(ACK_POINTS)))
    sys.stdout.write(f"seed {world.site.seed}: {', '.join(map(str, points))}\n")
    await world.progress()
    for point in points:
        await scenario(world, point)
        await world.steady()
        await world.progress()
    for process in (*world.site.workers, *world.members):
        held = process.held()
        assert all(one <= most for one, most in zip(held, HELD_MAX, strict=True)), held
    await world.settle()
    await world.check()
