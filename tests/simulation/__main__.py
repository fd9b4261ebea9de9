"""Runs worlds: `make simulate SEEDS=100 CLUSTERS=2`, `SEED=7 TRACE=1`, `ABLATE=all`."""

import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

from tests.simulation.ablations import ABLATIONS, without
from tests.simulation.check import check
from tests.simulation.losses.table import Noticed, search, table, write
from tests.simulation.plan import draw
from tests.simulation.shrink import shrunk
from tests.simulation.world import run

SHOWN = 5
"""Anomalies of a seed that are printed."""

SHRUNK = 3
"""Failing seeds of a run whose plans are made smaller."""


class Outcome(NamedTuple):
    """What a seed gave."""

    seed: int
    virtual_s: float
    anomalies: tuple[str, ...]


def outcome_of(seed: int, clusters: int, rule: str = "") -> Outcome:
    """Runs the world of a seed, without a rule if one is named."""
    with without(rule):
        result = run(draw(seed, clusters=clusters))
    anomalies = tuple(str(it) for it in check(result.history))
    return Outcome(seed, result.virtual_s, anomalies)


def simulate(seeds: range, jobs: int, clusters: int) -> int:
    """Runs worlds, and prints what is wrong with them; returns the exit code."""
    began_s, virtual_s, failed = time.perf_counter(), 0.0, 0
    for outcome in _outcomes(seeds, jobs, partial(outcome_of, clusters=clusters)):
        virtual_s += outcome.virtual_s
        if not outcome.anomalies:
            continue
        failed += 1
        for anomaly in outcome.anomalies[:SHOWN]:
            print(f"seed {outcome.seed}: {anomaly}", flush=True)
        if failed <= SHRUNK:
            print(
                f"seed {outcome.seed}: {shrunk(draw(outcome.seed, clusters=clusters))}", flush=True
            )
    took_s = time.perf_counter() - began_s
    rates = f"{len(seeds) / took_s:.1f} seeds/s, {virtual_s / took_s:.0f} virtual seconds a second"
    print(f"{len(seeds)} seeds from {seeds.start} on, {failed} failed, {rates}")
    return 1 if failed else 0


def _outcomes(seeds: range, jobs: int, of_seed: Callable[[int], Outcome]) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(of_seed, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(of_seed, seeds, chunksize=4)


def anomalies_of(clusters: int, seed: int, rule: str) -> tuple[str, ...]:
    """The anomalies of the world of a seed without a rule."""
    return outcome_of(seed, clusters, rule).anomalies


def ablate(rules: list[str], seeds: range, jobs: int, clusters: int, *, to_page: bool) -> int:
    """Looks for seeds that notice the loss of each rule; returns 1 if a loss is not noticed.

    A rule that another rule covers is no failure: its ablation says so.
    """
    ablations = [it for it in ABLATIONS if it.rule in rules]
    covered = {it.rule for it in ablations if it.covered}
    found: dict[str, Noticed | None] = {}
    for rule, how in search(partial(anomalies_of, clusters), rules, seeds, jobs):
        found[rule] = how
        shown = f"{how.seeds:6} seeds  {how.anomaly[:120]!r}" if how else f"not by {len(seeds)}"
        print(f"{rule:5} {shown}", flush=True)
    if to_page:
        write(table(ablations, found, len(seeds)))
    return 1 if any(how is None and it not in covered for it, how in found.items()) else 0


def main(arguments: list[str]) -> int:
    """Runs what the arguments `NAME=value` say; returns the exit code."""
    options = dict(it.split("=", 1) for it in arguments)
    first, count = int(options.get("SEED") or 1), int(options.get("SEEDS") or 1)
    seeds, jobs = range(first, first + count), int(options.get("JOBS") or 1)
    clusters = int(options.get("CLUSTERS") or 1)
    rules = options.get("ABLATE", "")
    if rules == "list":
        for ablation in ABLATIONS:
            print(f"{ablation.rule:5} {ablation.text}")
        return 0
    if rules:
        named = [it.rule for it in ABLATIONS] if rules == "all" else rules.split(",")
        return ablate(named, seeds, jobs, clusters, to_page=bool(options.get("TABLE")))
    if options.get("TRACE"):
        result = run(draw(first, clusters=clusters), traced=True)
        for event in result.trace:
            print(event)
    return simulate(seeds, jobs, clusters)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
