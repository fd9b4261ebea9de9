"""Runs worlds: `make simulate SEEDS=100 CLUSTERS=2`, `SEED=7 TRACE=1`, `REPEAT=9`, `ABLATE=all`."""

import sys
from functools import partial
from pathlib import Path

from tests.simulation.ablations import ABLATIONS, named, without
from tests.simulation.campaigns.campaign import Outcome, simulate
from tests.simulation.campaigns.disasters import disaster_of
from tests.simulation.campaigns.repeats import print_digests, repeat
from tests.simulation.campaigns.resolving import resolve
from tests.simulation.check import check
from tests.simulation.drawing.draw import draw
from tests.simulation.losses.table import Noticed, fails, search, table, write
from tests.simulation.shrink import shrunk
from tests.simulation.trace import page
from tests.simulation.world import run


def outcome_of(seed: int, clusters: int, rule: str = "") -> Outcome:
    """Runs the world of a seed, without a rule if one is named."""
    with without(rule):
        result = run(draw(seed, clusters=clusters))
    anomalies = tuple(str(it) for it in check(result.history))
    return Outcome(seed, result.virtual_s, anomalies)


def anomalies_of(clusters: int, seed: int, rule: str) -> tuple[str, ...]:
    """The anomalies of a seed's world without a rule, with as many clusters as the rule needs."""
    needed = max(it.clusters for it in named(rule))
    anomalies = outcome_of(seed, max(clusters, needed), rule).anomalies
    unfit = [it for it in anomalies if "<locals>" in it]  # a loss was called as it cannot be
    assert not unfit, f"the ablation of {rule} does not fit its check any more: {unfit[0]}"
    return anomalies


def ablate(rules: list[str], seeds: range, jobs: int, clusters: int, *, to_page: bool) -> int:
    """Looks for seeds that notice the loss of each rule; returns 1 if a loss is not noticed.

    A rule that another rule covers is no failure: its ablation says so, and worlds without both
    have to notice, or tests of the rule have to fail without it.
    """
    ablations = [it for it in ABLATIONS if it.rule in rules]
    covered = {it.rule for it in ablations if it.covered}
    rules = [*rules, *(f"{it.rule}+{it.covered_by}" for it in ablations if it.covered_by)]
    found: dict[str, Noticed | None] = {}
    for rule, how in search(partial(anomalies_of, clusters), rules, seeds, jobs):
        found[rule] = how
        shown = f"{how.seeds:6} seeds  {how.anomaly[:120]!r}" if how else f"not by {len(seeds)}"
        print(f"{rule:5} {shown}", flush=True)
    tested = [it for it in ablations if it.tests and found[it.rule] is None]
    failed = [it.rule for it in tested if fails(it)]
    for ablation in tested:
        shown = "fails" if ablation.rule in failed else "passes"
        print(f"{ablation.rule:5} {ablation.tests} {shown} without the rule", flush=True)
    if to_page:
        write(table(ablations, found, len(seeds), failed))
    unnoticed = {it for it, how in found.items() if how is None} - covered
    return 1 if unnoticed or len(failed) < len(tested) else 0


def trace(seed: int, clusters: int, to: str) -> None:
    """Prints what happens in the world of a seed, or writes it to a page whose name is given."""
    result = run(draw(seed, clusters=clusters), traced=True)
    if not to.endswith(".html"):
        for event in result.trace:
            print(event)
        return
    anomalies = map(str, check(result.history))
    Path(to).write_text(page(f"Seed {seed}", result.trace, anomalies), "utf-8")
    print(f"{to} has {len(result.trace)} events")


def special(rounds: range, seeds: range, jobs: int) -> int:
    """Runs rounds of resolvers alone, or worlds whose clusters are lost; returns the exit code."""
    if rounds:
        return resolve(rounds)
    return simulate(seeds, jobs, disaster_of, lambda _: "of a disaster")


def main(arguments: list[str]) -> int:
    """Runs what the arguments `NAME=value` say; returns the exit code."""
    options = dict(it.split("=", 1) for it in arguments)
    first, count = int(options.get("SEED") or 1), int(options.get("SEEDS") or 1)
    seeds, jobs = range(first, first + count), int(options.get("JOBS") or 2)
    clusters = int(options.get("CLUSTERS") or 1)
    rules = options.get("ABLATE", "")
    if rules == "list":
        for ablation in ABLATIONS:
            print(f"{ablation.rule:5} {ablation.text}")
        return 0
    if rules:
        names = [it.rule for it in ABLATIONS] if rules == "all" else rules.split(",")
        return ablate(names, seeds, jobs, clusters, to_page=bool(options.get("TABLE")))
    if traced := options.get("TRACE"):
        trace(first, clusters, traced)
    if times := int(options.get("DIGESTS") or 0):
        return print_digests(seeds, times, clusters)
    if times := int(options.get("REPEAT") or 0):
        return repeat(seeds, times, jobs, clusters)
    rounds = int(options.get("ROUNDS") or 0)
    if rounds or options.get("DISASTERS"):
        return special(range(first, first + rounds), seeds, jobs)
    of_seed = partial(outcome_of, clusters=clusters)
    return simulate(seeds, jobs, of_seed, lambda seed: shrunk(draw(seed, clusters=clusters)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
