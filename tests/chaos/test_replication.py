"""Replicated subscriptions on real clusters under fault, from a printed seed.

*Source*: protocols.md H, I. `make chaos ARGS="-k replication"` runs all of it, with `ROUNDS` faults
in each scenario, `SEED` elsewhere. What must hold is in `Campaign`.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from connectors.local.cluster import LocalCluster
from tests.chaos.mesh import Mesh
from tests.chaos.replicated_campaign import Campaign

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))

Scenario = Callable[[Campaign], Awaitable[None]]


async def nothing(campaign: Campaign) -> None:
    """Calm."""


SCENARIOS: list[Scenario] = [nothing]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[LocalCluster]]:
    """Three clusters for all scenarios; started when they are needed."""
    brokers = [
        LocalCluster(name, tmp_path_factory.mktemp(f"kafka-{name}"), fast_start=True)
        for name in "abc"
    ]
    yield brokers
    for one in brokers:
        one.stop()


@pytest.fixture
async def campaign(
    brokers: list[LocalCluster],
    topic_name: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Campaign]:
    """A mesh, and groups that have begun to read on its first cluster."""
    callspec = request.node.callspec
    count = callspec.params["count"]
    random = Random(f"{SEED}-{callspec.id}")
    async with Mesh(brokers[:count], tmp_path, topic_name) as mesh:
        campaign = Campaign(mesh, random)
        campaign.say(f"seed {SEED}")
        await campaign.begin()
        yield campaign


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda it: it.__name__)
@pytest.mark.parametrize("count", [3, 2])
async def test_groups_go_from_cluster_to_cluster(
    campaign: Campaign, scenario: Scenario, count: int
):
    """Whatever strikes: nothing is skipped, re-reads were announced, in the end all is exact."""
    ours, others, lagging, _ = campaign.groups
    for _ in range(ROUNDS):
        campaign.write(300)
        await campaign.write_aborted()
        await scenario(campaign)
        for group in (ours, others):
            await campaign.fail_over_at_once(group)
            campaign.write(100)
        await campaign.consume(lagging)
    await campaign.settle()
    for group in (ours, others):
        for target in [one for one in campaign.mesh.names if one != group.at]:
            await campaign.fail_over_in_order(group, target)
    await campaign.end()
