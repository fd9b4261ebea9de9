"""Rows in PostgreSQL and records in Kafka, both or neither, whatever is killed at whichever point.

*Source*: rules L1 to L6. `make chaos ROUNDS=100 SEED=7 ARGS="-k test_rows_and_records -s"` kills a
thousand times, ten times for each round, and prints how often what was killed where; with
`CHAOS_S=600` it stops after ten minutes.
"""

import json
import math
import os
from pathlib import Path

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.chaos.prepared.campaign import Campaign, Strike, run
from tests.chaos.prepared.points import Point
from tests.chaos.prepared.programs.losses import LOSSES
from tests.support.databases.postgres import postgres_server

SEED = int(os.environ.get("SEED", "1"))
ROUNDS = int(os.environ.get("ROUNDS", "2"))
SECONDS = float(os.environ.get("CHAOS_S", "inf"))
KILLS = 10


@pytest.mark.timeout(300 + 30 * KILLS * ROUNDS)
async def test_rows_and_records_are_the_same(cluster: LocalCluster, tmp_path: Path):
    """After each batch of kills: no row without its records, no record without its row."""
    with postgres_server() as server:
        async with Campaign(cluster, server, tmp_path, SEED) as campaign:
            report = await run(campaign, SEED, KILLS * ROUNDS, SECONDS)
    (tmp_path / "report.json").write_text(json.dumps(report))
    assert report["kills"] >= 0.9 * KILLS * ROUNDS or math.isfinite(SECONDS)


@pytest.mark.parametrize("rule", LOSSES)
async def test_the_judge_notices_that_a_rule_is_broken(
    cluster: LocalCluster, tmp_path: Path, rule: str
):
    """Rows of applications that are killed after the database's commit have no records then."""
    seed = 1000 * SEED + sorted(LOSSES).index(rule)
    with postgres_server() as server:
        async with Campaign(cluster, server, tmp_path, seed, without=rule) as campaign:
            for _ in range(KILLS):
                await campaign.strike(Strike("application", Point.COMMITTED))
            seen = await campaign.judge()
    assert seen.missing
    assert seen.extra == []
