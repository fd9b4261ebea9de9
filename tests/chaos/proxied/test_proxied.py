"""Real processes on three real brokers, with a proxy between each process and each broker.

`make chaos ARGS="-k proxied" CHAOS_S=60 SEED=7`: `CHAOS_S` is the length of a scenario, ten minutes
by default. The history of what each process saw is judged by the checker of the simulation; a
scenario that fails leaves the histories and logs where its message says.
"""

import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.proxied.merging import Merging, merging_of
from tests.chaos.proxied.plan import KINDS, draw
from tests.chaos.proxied.scenario import COMING, PROGRAMS, SETTLE_S, Scenario
from tests.chaos.proxied.site import Site
from tests.simulation.check import check

SEED = int(os.environ.get("SEED", "1"))
CHAOS_S = float(os.environ.get("CHAOS_S", "600"))
ABLATE = os.environ.get("ABLATE", "")
"""A rule that all processes go without (`make simulate ABLATE=list`): the scenario must fail."""

SHOWN = 20


@pytest.mark.timeout(CHAOS_S + SETTLE_S + 900)
@pytest.mark.parametrize("scenario", KINDS)
async def test_histories_are_sound(scenario: str, kept: Path):
    """Nothing is lost, doubled, torn, reordered or read too early, and all goes on by itself."""
    faults = draw(scenario, SEED, PROGRAMS, COMING, CHAOS_S)
    async with Site(kept, PROGRAMS) as site, Scenario(site, kept, SEED, ABLATE) as running:
        await running.befall(faults)
        began_s = time.monotonic()
        await running.settle()
    settled_s = time.monotonic() - began_s
    merging = merging_of(kept / "histories")
    history = merging.merged()
    anomalies = check(history)
    sys.stdout.write(
        f"{scenario}, seed {SEED}: {len(faults)} faults, {_figures(merging)}, settled in "
        f"{settled_s:.0f} s, {len(anomalies)} anomalies\n"
    )
    if anomalies:
        said = "\n".join(str(it)[:1000] for it in anomalies[:SHOWN])
        pytest.fail(
            f"seed {SEED}, {scenario}: {len(anomalies)} anomalies; histories and logs are in "
            f"{kept}\n{said}"
        )


def _figures(merging: Merging) -> str:
    """How much was done."""
    outcomes = Counter(it.outcome for it in merging.history.transactions)
    return (
        f"{outcomes['committed']} of {outcomes.total()} transactions committed, "
        f"{outcomes['unknown']} unknown, {len(merging.history.polls)} polls, "
        f"{sum(merging.moves)} of {len(merging.moves)} moves in order"
    )
