"""The short version of the campaign of tests/chaos/prepared, which `make chaos` runs at length."""

from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.chaos.prepared.campaign import Campaign, plan, run
from tests.support.databases.postgres import postgres_server

SEED, KILLS = 1, 20


@pytest.mark.slow
async def test_rows_and_records_are_the_same_after_twenty_kills(tmp_path: Path):
    """Whatever is killed at whichever point: no row without records, no records without row."""
    with (
        LocalCluster("killed", tmp_path / "broker", fast_start=True) as cluster,
        postgres_server() as server,
    ):
        async with Campaign(cluster, server, tmp_path, SEED) as campaign:
            report = await run(campaign, SEED, KILLS)
    assert report["kills"] == len(plan(SEED, KILLS))
