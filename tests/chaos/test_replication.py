"""Replicated subscriptions on real clusters under fault, from a printed seed.

*Source*: rules H, I. `make chaos ARGS="-k replication"` runs all of it, with `ROUNDS` faults
in each scenario, `SEED` elsewhere. What must hold is in `Campaign`.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from stilltide.schemas.values import TopicPartition
from tests.chaos.groups.campaign import Campaign
from tests.chaos.groups.mesh import Mesh
from tests.chaos.points import COPIED, COPY_POINTS

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))

Scenario = Callable[[Campaign], Awaitable[None]]


async def nothing(campaign: Campaign) -> None:
    """Calm."""
    async with campaign.stirred():
        pass


async def link_killed(campaign: Campaign) -> None:
    """SIGKILL to a link; another one follows."""
    source, target = campaign.random.sample(campaign.mesh.names, 2)
    async with campaign.stirred():
        await campaign.point(target, campaign.any_point(target))
        await campaign.mesh.links[source, target].kill()


async def link_stopped(campaign: Campaign) -> None:
    """SIGSTOP to a link; another one takes over, and the zombie finds itself fenced."""
    source, target = campaign.random.sample(campaign.mesh.names, 2)
    async with campaign.stirred():
        await campaign.point(target, campaign.any_point(target))
        frozen = await campaign.mesh.links[source, target].freeze()
        await campaign.copied(source, target)
        frozen.resume()
        await campaign.point(target, COPIED)
        assert await frozen.ended() == 1, frozen.said


async def share_killed(campaign: Campaign) -> None:
    """SIGKILL to one of the processes of a link; the command starts it again."""
    source, target = campaign.random.sample(campaign.mesh.names, 2)
    async with campaign.stirred():
        await campaign.point(target, campaign.any_point(target))
        os.kill(
            campaign.random.choice(campaign.mesh.links[source, target].shares()), signal.SIGKILL
        )


async def worker_joins(campaign: Campaign) -> None:
    """A second worker shares the links and the controllers; the first one gets SIGKILL."""
    name = campaign.random.choice(campaign.mesh.names)
    async with campaign.stirred():
        older = campaign.mesh.workers[name]
        await campaign.mesh.add_worker(name)
        await campaign.point(name, campaign.any_point(name))
        await older.kill()


async def worker_killed(campaign: Campaign) -> None:
    """SIGKILL to a worker with its controllers, and links if it has any; another is started."""
    name = campaign.random.choice(campaign.mesh.names)
    async with campaign.stirred():
        await campaign.point(name, campaign.any_point(name))
        await campaign.mesh.workers[name].kill()
        await campaign.mesh.add_worker(name)


async def cluster_killed(campaign: Campaign) -> None:
    """SIGKILL to a broker; who was there goes elsewhere, and it comes back later."""
    await _strike(campaign, LocalCluster.kill, LocalCluster.start)


async def disaster_and_back(campaign: Campaign) -> None:
    """SIGKILL to the broker where the groups are; they go on elsewhere, and come back at once."""
    ours, others, *_ = campaign.groups
    home = campaign.random.choice(campaign.mesh.names)
    for group in (ours, others):
        if group.at != home:
            group.at = home
            await campaign.read_within(group, await campaign.said(group))
    said = await _said(campaign)
    await campaign.point(home, campaign.random.choice(COPY_POINTS))
    broker = campaign.mesh.brokers[home]
    await asyncio.to_thread(broker.kill)
    await _while_away(campaign, home, said)
    for group in campaign.random.sample((ours, others), campaign.random.randrange(3)):
        campaign.write(100)
        await campaign.consume(group)
    await asyncio.to_thread(broker.start)
    campaign.away.clear()
    for group in (ours, others):
        campaign.write(100)
        group.at = home
        await campaign.read_within(group, await campaign.said(group))


async def cluster_stopped(campaign: Campaign) -> None:
    """SIGSTOP to a broker: connections stay open, nothing answers; it goes on later."""
    await _strike(campaign, LocalCluster.pause, LocalCluster.resume)


Said = Mapping[tuple[str, str], Mapping[TopicPartition, int]]
"""How much a group would read again on a cluster."""

Blow = Callable[[LocalCluster], None]


async def _to_be_struck(campaign: Campaign) -> tuple[str, Said]:
    """A cluster, mostly one that groups read on, and what operators are told before."""
    name = campaign.random.choice([campaign.groups[0].at, *campaign.mesh.names])
    async with campaign.stirred():
        pass
    said = await _said(campaign)
    await campaign.point(name, campaign.random.choice(COPY_POINTS))
    return name, said


async def _said(campaign: Campaign) -> Said:
    return {
        (group.name, other): await campaign.said(group, other)
        for group in campaign.groups[:2]
        for other in campaign.mesh.names
    }


async def _strike(campaign: Campaign, strike: Blow, mend: Blow) -> None:
    name, said = await _to_be_struck(campaign)
    broker = campaign.mesh.brokers[name]
    await asyncio.to_thread(strike, broker)
    await _while_away(campaign, name, said)
    await asyncio.to_thread(mend, broker)
    campaign.away.clear()


async def _while_away(campaign: Campaign, name: str, said: Said) -> None:
    """An operator is told so; who was there goes on elsewhere, on what was told before."""
    campaign.away.add(name)
    for group in campaign.groups[:2]:
        campaign.write(100)
        if group.at == name:
            group.at = campaign.random.choice(campaign.here)
            assert await campaign.told_away(group) == [name]
            await campaign.read_within(group, said[group.name, group.at])


async def group_disabled(campaign: Campaign) -> None:
    """It is carried over no more until it is enabled again."""
    group = campaign.random.choice(campaign.groups[:2])
    await campaign.enable(group, value=False)
    await campaign.consume(group)
    await campaign.fail_over_at_once(group)
    await campaign.enable(group, value=True)


async def group_deleted(campaign: Campaign) -> None:
    """A cluster that a group does not read on forgets it."""
    async with campaign.stirred():
        pass
    group = campaign.random.choice(campaign.groups[:2])
    others = [one for one in campaign.mesh.names if one != group.at]
    await campaign.forget(group, campaign.random.choice(others))


SCENARIOS: list[tuple[Scenario, int, bool]] = [
    (nothing, 3, False),
    (link_killed, 3, False),
    (link_killed, 2, False),
    (link_stopped, 3, False),
    (link_stopped, 2, False),
    (share_killed, 2, False),
    (worker_joins, 2, True),
    (worker_killed, 3, False),
    (worker_killed, 2, True),
    (cluster_killed, 3, False),
    (cluster_killed, 2, True),
    (disaster_and_back, 3, False),
    (disaster_and_back, 2, True),
    (cluster_stopped, 3, False),
    (cluster_stopped, 2, False),
    (group_disabled, 3, False),
    (group_deleted, 3, False),
]
"""With the number of clusters, and whether workers run the links."""


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
    _, count, in_workers = callspec.params["scenario"]
    random = Random(f"{SEED}-{callspec.id}")
    async with Mesh(brokers[:count], tmp_path, topic_name, in_workers=in_workers) as mesh:
        campaign = Campaign(mesh, random)
        campaign.say(f"seed {SEED}")
        await campaign.begin()
        yield campaign


def _named(scenario: tuple[Scenario, int, bool]) -> str:
    return f"{scenario[0].__name__}-{scenario[1]}{'-in-workers' * scenario[2]}"


@pytest.mark.timeout(900 + 60 * ROUNDS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=_named)
async def test_groups_go_from_cluster_to_cluster(
    campaign: Campaign, scenario: tuple[Scenario, int, bool]
):
    """Whatever strikes: nothing is skipped, re-reads were announced, in the end all is exact."""
    ours, others, lagging, _ = campaign.groups
    for _ in range(ROUNDS):
        campaign.write(300)
        await campaign.write_aborted()
        await scenario[0](campaign)
        for group in (ours, others):
            await campaign.fail_over_at_once(group)
            campaign.write(100)
        await campaign.consume(lagging)
    await campaign.settle()
    for group in (ours, others):
        for target in [one for one in campaign.mesh.names if one != group.at]:
            await campaign.fail_over_in_order(group, target)
    await campaign.end()
