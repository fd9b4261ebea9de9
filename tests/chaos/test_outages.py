"""A long absence of two clusters, with everything that serves and every kind of application."""

import asyncio
import os
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.outages.scene import Scene

OUTAGE_S = float(os.environ.get("OUTAGE_S", "600"))

WAIT_S = 180.0
"""For each wait for a state that must come."""


@pytest.mark.timeout(OUTAGE_S + 10 * WAIT_S)
async def test_everything_goes_on_after_a_long_absence(tmp_path: Path):
    """B9: for `OUTAGE_S`; no process ends, nothing is lost and nothing is doubled."""
    with (
        LocalCluster("a", tmp_path / "a", fast_start=True) as source,
        LocalCluster("b", tmp_path / "b", fast_start=True) as own,
    ):
        async with Scene(source, own, tmp_path, broker_away_s_max=5, wait_s=WAIT_S) as scene:
            await scene.use(50)
            await scene.go_away()
            await asyncio.wait([scene.applications.writing], timeout=OUTAGE_S)
            await scene.come_back()
            await scene.use(50)
            await scene.check()
            assert all(child.running for child in scene.children.values())
