"""Whole worlds: new seeds, seeds that ever failed, the same run again, rules that are missed."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stilltide.connectors.clock import SystemClock
from tests.simulation.ablations import without
from tests.simulation.check import check
from tests.simulation.plan import Plan, draw
from tests.simulation.shrink import shrunk
from tests.simulation.world import run

NEW_SEEDS_S = float(os.environ.get("SIMULATE_S", "20"))
"""Time for new seeds, in one process."""

FAILED = Path(__file__).with_name("failed_seeds.txt")
"""A seed a line, with what it had shown."""

_ROOT = Path(__file__).parents[2]

_DIGEST = """
import hashlib
from tests.simulation.plan import draw
from tests.simulation.world import run
for seed in (3, 8, 20):
    result = run(draw(seed))
    history = result.history
    seen = history.transactions, history.polls, history.acknowledged, history.final
    print(seed, result.turns, hashlib.sha256(repr(seen).encode()).hexdigest())
"""


def test_new_seeds_have_no_anomaly():
    """Worlds that no run has seen before: their seeds begin at the day's date."""
    seed = int(datetime.now(UTC).strftime("%Y%m%d")) * 1000
    end_s = time.monotonic() + NEW_SEEDS_S
    while time.monotonic() < end_s:
        assert check(run(draw(seed)).history) == [], f"make simulate SEED={seed} TRACE=1"
        seed += 1


def test_seeds_that_failed_once_pass():
    """What a seed had shown is mended."""
    for line in FAILED.read_text().splitlines():
        if line[:1].isdigit():
            assert check(run(draw(int(line.split()[0]))).history) == [], line


def test_a_seed_is_one_run():
    """The same seed gives the same history in every process, whatever the hashes of strings."""
    runs = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": ".", "PYTHONHASHSEED": number},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
    assert len(runs) == 1
    assert len(next(iter(runs)).splitlines()) == 3


@pytest.mark.parametrize(
    "rule", ["B1", "C2", "C4", "C9", "C12", "D2", "D2h", "D3", "E1", "E4", "E5"]
)
def test_the_loss_of_a_rule_is_noticed(rule: str):
    """Without the rule, one of a few worlds has an anomaly; `ABLATE=all` tries every rule."""
    with without(rule):
        assert any(check(run(draw(seed)).history) for seed in range(1, 6))


def test_a_failing_plan_is_made_smaller():
    """Parts without which a world fails, too, are left out."""

    def fails(plan: Plan) -> bool:
        kinds = [it.kind for it in plan.faults]
        ends = {it.end for client in plan.clients for it in client.operations}
        return "kill" in kinds and "abort" in ends

    plan = next(plan for plan in map(draw, range(100)) if fails(plan))
    small = shrunk(plan, fails)
    assert [it.kind for it in small.faults] == ["kill"]
    assert [it.end for client in small.clients for it in client.operations] == ["abort"]


def test_real_time_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A task that asks for the real time, past its ports, ends the run, which names the line."""
    monkeypatch.setattr(
        "tests.simulation.processes.process.ProcessClock.monotonic_ms", SystemClock.monotonic_ms
    )
    plan = replace(draw(1), faults=())
    anomalies = check(run(plan).history)
    assert any("clock.py" in it.text and "monotonic_ns" in it.text for it in anomalies)
