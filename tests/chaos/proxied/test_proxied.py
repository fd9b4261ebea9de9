"""Real processes on three real brokers, with a proxy between each process and each broker.

`make chaos ARGS="-k proxied" CHAOS_S=60 SEED=7`: `CHAOS_S` is the length of a scenario, ten minutes
by default. The history of what each process saw is judged by the checker of the simulation; a
scenario that fails leaves the histories and logs where its message says.
"""

import os
import shutil
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.proxied.merging import merged
from tests.chaos.proxied.plan import KINDS, draw
from tests.chaos.proxied.scenario import PROGRAMS, SETTLE_S, Scenario
from tests.chaos.proxied.site import Site
from tests.simulation.check import check
from tests.support.processes.child import ROOT

SEED = int(os.environ.get("SEED", "1"))
CHAOS_S = float(os.environ.get("CHAOS_S", "600"))
KEPT = ROOT / "build" / "chaos"
SHOWN = 20


@pytest.mark.timeout(CHAOS_S + SETTLE_S + 900)
@pytest.mark.parametrize("scenario", KINDS)
async def test_histories_are_sound(scenario: str):
    """Nothing is lost, doubled, torn, reordered or read too early, and all goes on by itself."""
    directory = KEPT / f"{scenario}-{SEED}-{time.time_ns()}"
    faults = draw(scenario, SEED, PROGRAMS, CHAOS_S)
    async with Site(directory, PROGRAMS) as site, Scenario(site, directory, SEED) as running:
        await running.befall(faults)
        began_s = time.monotonic()
        await running.settle()
    settled_s = time.monotonic() - began_s
    history = merged(directory / "histories")
    anomalies = check(history)
    committed = sum(it.outcome == "committed" for it in history.transactions)
    unknown = sum(it.outcome == "unknown" for it in history.transactions)
    sys.stdout.write(
        f"{scenario}, seed {SEED}: {len(faults)} faults, {committed} of "
        f"{len(history.transactions)} transactions committed, {unknown} unknown, "
        f"{len(history.polls)} polls, settled in {settled_s:.0f} s, {len(anomalies)} anomalies\n"
    )
    _drop_data(directory)
    if anomalies:
        said = "\n".join(str(it)[:1000] for it in anomalies[:SHOWN])
        pytest.fail(
            f"seed {SEED}, {scenario}: {len(anomalies)} anomalies; histories and logs are in "
            f"{directory}\n{said}"
        )
    shutil.rmtree(directory)


def _drop_data(directory: Path) -> None:
    """Leaves histories and logs."""
    for data in directory.glob("*/**/kafka"):
        shutil.rmtree(data)
