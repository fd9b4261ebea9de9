"""Two clusters go away together, and everything that used them goes on when they are back."""

import asyncio
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.outages.scene import Scene
from tests.support.processes.operator import fetch

OUTAGE_S = 25.0

AWAY_S_MAX = 5
"""The setting `broker_away_s_max`, which counts before a process has served only."""

WAIT_S = 120.0
"""For each wait for a state that must come."""

LINES_MAX = 14
"""For each process: three lines for each of two clusters, and some about work under way."""


@pytest.mark.timeout(600)
async def test_everything_goes_on_by_itself(tmp_path: Path):
    """B9: worker, links, indexers, subscriptions and transactions; nothing is lost or doubled.

    Meanwhile `/readyz` and the metrics name the clusters that are awaited, and stderr says little.
    """
    with (
        LocalCluster("a", tmp_path / "a", fast_start=True) as source,
        LocalCluster("b", tmp_path / "b", fast_start=True) as own,
    ):
        async with Scene(
            source, own, tmp_path, broker_away_s_max=AWAY_S_MAX, wait_s=WAIT_S
        ) as scene:
            await scene.use(20)
            before = {name: len(it.said.splitlines()) for name, it in scene.children.items()}
            await scene.go_away()
            gone_s = asyncio.get_running_loop().time()
            await _until_told(scene)
            left_s = gone_s + OUTAGE_S - asyncio.get_running_loop().time()
            await asyncio.wait([scene.applications.writing], timeout=max(left_s, 0.0))
            await scene.come_back()
            await scene.use(20)
            await scene.check()
            for name, child in scene.children.items():
                assert child.running, name
                status, text = await fetch(f"{scene.webs[name]}/readyz")
                assert status == 200, text
                lines = child.said.splitlines()[before[name] :]
                assert len(lines) <= LINES_MAX, lines
                assert any("cluster_away" in line for line in lines)
                assert any("cluster_back" in line for line in lines)


async def _until_told(scene: Scene) -> None:
    """Waits until each process says which cluster it awaits, at which address and since when."""
    source, own = (it.bootstrap for it in scene.clusters)
    awaited = {"worker": [source, own], "link": [source, own], "indexer": [own]}
    for name, addresses in awaited.items():
        text = metrics = ""
        async with asyncio.timeout(WAIT_S):
            while not all(f"at {it} since 20" in text for it in addresses):
                status, text = await fetch(f"{scene.webs[name]}/readyz")
            while metrics.count("stilltide_cluster_outages_total{") < len(addresses) or (
                " 0.0" in "".join(_away(metrics))
            ):
                _, metrics = await fetch(f"{scene.webs[name]}/metrics")
        assert status == 503, text


def _away(metrics: str) -> list[str]:
    """The samples of how long clusters have been away."""
    lines = metrics.splitlines()
    return [it for it in lines if it.startswith("stilltide_cluster_away_seconds{")]
