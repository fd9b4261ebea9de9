"""Runs worlds: `make simulate SEEDS=100 SEED=1`, `make simulate ABLATE=all`."""

import sys
import time

from tests.simulation.ablations import ABLATIONS, without
from tests.simulation.check import check
from tests.simulation.plan import draw
from tests.simulation.world import run

SHOWN = 5
"""Anomalies of a seed that are printed."""


def ablate(rule: str, first: int, count: int) -> bool:
    """Looks for a seed that notices the loss of a rule; whether there is one."""
    began_s = time.perf_counter()
    for tried, seed in enumerate(range(first, first + count), 1):
        with without(rule):
            anomalies = [str(it) for it in check(run(draw(seed)).history)]
        if anomalies:
            took_s = time.perf_counter() - began_s
            print(f"{rule:5} {tried:5} seeds {took_s:6.1f} s  {anomalies[0][:150]!r}", flush=True)
            return True
    print(f"{rule:5} not noticed by {count} seeds", flush=True)
    return False


def main() -> int:
    """Runs what the arguments say; returns the exit code."""
    options = dict(it.split("=", 1) for it in sys.argv[1:])
    first, count = int(options.get("SEED") or 1), int(options.get("SEEDS") or 1)
    rule = options.get("ABLATE", "")
    if rule == "list":
        for ablation in ABLATIONS:
            print(f"{ablation.rule:5} {ablation.text}")
        return 0
    if rule:
        rules = [it.rule for it in ABLATIONS] if rule == "all" else rule.split(",")
        return 0 if all([ablate(it, first, count) for it in rules]) else 1
    began_s, virtual_s, failed = time.perf_counter(), 0.0, 0
    for seed in range(first, first + count):
        result = run(draw(seed))
        virtual_s += result.virtual_s
        anomalies = check(result.history)
        failed += bool(anomalies)
        for anomaly in anomalies[:SHOWN]:
            print(f"seed {seed}: {anomaly}")
    took_s = time.perf_counter() - began_s
    rates = f"{count / took_s:.1f} seeds/s, {virtual_s / took_s:.0f} virtual seconds a second"
    print(f"{count} seeds, {failed} failed, {rates}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
