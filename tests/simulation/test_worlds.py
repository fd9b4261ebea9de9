"""Whole worlds: new seeds, seeds that ever failed, the same run again, rules that are missed."""

import asyncio
import io
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stilltide.connectors.chance import SystemChance
from stilltide.connectors.clock import SystemClock
from tests.simulation.ablations import without
from tests.simulation.campaigns.campaign import Outcome, Tally, simulate
from tests.simulation.campaigns.repeats import repeat
from tests.simulation.check import check
from tests.simulation.drawing.draw import draw
from tests.simulation.plan import Plan
from tests.simulation.processes.process import Process, ProcessClock
from tests.simulation.shrink import shrunk
from tests.simulation.world import World, run

NEW_SEEDS_S = float(os.environ.get("SIMULATE_S", "60"))
"""Time for new seeds, in one process."""

FAILED = Path(__file__).with_name("failed_seeds.txt")
"""A seed a line, with the number of clusters, and with what it had shown."""


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
            seed, clusters, _ = line.split(maxsplit=2)
            assert check(run(draw(int(seed), clusters=int(clusters))).history) == [], line


def test_a_seed_is_one_run(capfd: pytest.CaptureFixture[str]):
    """The same seed gives the same history in every process, whatever the hashes of strings."""
    assert repeat(range(3, 5), times=2, jobs=2, clusters=1) == 0
    assert capfd.readouterr().out.startswith("4 runs of 2 seeds from 3 on, in 2 processes")


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


def _read_time(_: ProcessClock) -> int:
    return SystemClock().monotonic_ms()


def _choose(_: ProcessClock) -> int:
    return round(SystemChance().between(0, 1))


@pytest.mark.parametrize(
    ("work", "place", "source"),
    [(_read_time, "clock.py", "monotonic_ns"), (_choose, "chance.py", "uniform")],
)
def test_real_sources_are_refused(
    work: Callable[[ProcessClock], int],
    place: str,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """A task that asks for real time or real chance ends the run, which names the line."""
    monkeypatch.setattr(ProcessClock, "monotonic_ms", work)
    result = run(replace(draw(1), faults=()))
    [unfinished] = result.history.unfinished
    assert place in unfinished
    assert source in unfinished
    assert result.virtual_s < 10


def test_a_world_that_stands_still_names_its_tasks(monkeypatch: pytest.MonkeyPatch):
    """A world in which nothing is due fails, and says where each task waits."""

    async def stands(world: World) -> None:
        process = Process("sleeper.1")
        world.processes.append(process)
        await process.start(_never())

    monkeypatch.setattr(World, "run", stands)
    [unfinished] = run(draw(1)).history.unfinished
    assert "nothing is due" in unfinished
    assert "sleeper.1" in unfinished
    assert "test_worlds.py" in unfinished


async def _never() -> None:
    await asyncio.Event().wait()


def _outcome(seed: int) -> Outcome:
    if seed == 4:
        raise KeyboardInterrupt
    return Outcome(seed, 50.0, ("an anomaly",) if seed == 2 else ())


def test_a_run_says_what_failed(capfd: pytest.CaptureFixture[str]):
    """The last line counts seeds and failures; a failing seed is named, and made smaller."""
    assert simulate(range(1, 4), 1, _outcome, lambda seed: f"a small plan of {seed}") == 1
    lines = capfd.readouterr().out.splitlines()
    assert lines[:2] == ["seed 2: an anomaly", "seed 2: a small plan of 2"]
    assert lines[2].startswith("3 seeds from 1 on, 1 failed, ")
    assert lines[2].endswith(" virtual seconds a second")
    assert simulate(range(1, 2), 2, _outcome, str) == 0


def test_an_interrupted_run_says_what_has_run(capfd: pytest.CaptureFixture[str]):
    """After Ctrl-C the last line speaks of the seeds that have run."""
    assert simulate(range(3, 9), 1, _outcome, str) == 1
    assert capfd.readouterr().out.startswith("1 seeds from 3 on, 0 failed, ")


def test_progress_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch):
    """A long run without a terminal writes lines of progress."""
    monkeypatch.setattr("tests.simulation.campaigns.campaign.PROGRESS_S", 0.0)
    out = io.StringIO()
    tally = Tally(range(10), out)
    tally.add(_outcome(1))
    tally.add(_outcome(2))
    assert out.getvalue().splitlines()[1].startswith("2 of 10 seeds, 1 failed, ")
