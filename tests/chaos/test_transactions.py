"""Transactions under fault: each scenario at each named point, from a printed seed.

*Source*: rules B, C. `make chaos` runs all of it; `make chaos SEED=7` begins elsewhere,
`make chaos ARGS="-k 'worker and marker'"` runs a part. What is checked is in `World.check`; workers
must hold no more threads, files and memory after a scenario than they need.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.chaos.points import POINTS, Point
from tests.chaos.scenarios import (
    broker_killed,
    broker_paused,
    worker_joins_and_leaves,
    worker_killed,
    worker_killed_while_it_recovers,
    worker_stopped_past_its_session,
)
from tests.chaos.world import World

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
RSS_KIB_MAX = 300 * 1024
DESCRIPTORS_MAX = 300
THREADS_MAX = 180

Scenario = Callable[[World, Point], Awaitable[None]]


async def application_killed(world: World, point: Point) -> None:
    """SIGKILL to an application; what it left open is aborted by its time-out."""
    await world.point(point)
    await world.applications.pop(0).kill()
    await world.add_application()


SCENARIOS: list[Scenario] = [
    worker_killed,
    worker_killed_while_it_recovers,
    worker_stopped_past_its_session,
    worker_joins_and_leaves,
    application_killed,
    broker_killed,
    broker_paused,
]


@pytest.fixture
async def world(
    cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    """A world of this scenario's own seed."""
    seed = SEED * 1000 + request.node.callspec.indices["scenario"] * 100
    seed += request.node.callspec.indices["point"]
    async with World(cluster, tmp_path, seed) as world:
        yield world


@pytest.mark.parametrize("point", POINTS, ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
async def test_every_transaction_ends_as_it_was_told(
    world: World, scenario: Scenario, point: Point
):
    """Whatever strikes, whenever: no acknowledged outcome is lost or doubled, and all end."""
    for _ in range(2):
        await world.add_application()
    await world.progress()
    for _ in range(ROUNDS):
        await scenario(world, point)
        await world.progress()
    await world.settle()
    await world.check()
    for worker in world.site.workers:
        held = worker.held()
        assert held.rss_kib < RSS_KIB_MAX, held
        assert held.descriptors < DESCRIPTORS_MAX, held
        assert held.threads < THREADS_MAX, held
