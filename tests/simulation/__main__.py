"""Runs worlds: `python -m tests.simulation SEEDS=100 SEED=1`."""

import sys
import time

from tests.simulation.check import check
from tests.simulation.plan import draw
from tests.simulation.world import run

if __name__ == "__main__":
    options = dict(it.split("=", 1) for it in sys.argv[1:])
    first, count = int(options.get("SEED", 1)), int(options.get("SEEDS", 1))
    began_s, virtual_s, failed = time.perf_counter(), 0.0, 0
    for seed in range(first, first + count):
        result = run(draw(seed))
        virtual_s += result.virtual_s
        anomalies = check(result.history)
        if anomalies or count == 1:
            failed += bool(anomalies)
            h = result.history
            outcomes = [it.outcome for it in h.transactions]
            print(seed, f"{result.virtual_s:.1f} s, {result.turns} turns", len(h.polls),
                  len(h.acknowledged), {it: outcomes.count(it) for it in set(outcomes)})
            for anomaly in anomalies[:5]:
                print("  ", str(anomaly)[:3000])
    took_s = time.perf_counter() - began_s
    print(f"{count} seeds, {failed} failed, {count / took_s:.2f} seeds/s, {virtual_s / took_s:.0f} virtual s/s")
