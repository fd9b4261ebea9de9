"""Processor time that processes use over a stretch of time, or for one unit of work.

Processor time for a unit hardly depends on what else a machine does: a ratio of two such times
says the same on a busy machine as on a quiet one, and a ratio of rates does not.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from tests.bench.harness import Run, cpu_s, cpu_with_children_s, looks, middle


class Spent:
    """Processor time from its construction on.

    Args:
        pids: the processes, by what the report calls them.
        children: whether the children of each are a part of it, those that have ended included.
    """

    def __init__(self, pids: Mapping[str, int], *, children: bool = False) -> None:
        self._pids = pids
        self._cpu_s = cpu_with_children_s if children else cpu_s
        self._began_s = time.perf_counter()
        self._before_s = {name: self._cpu_s(pid) for name, pid in pids.items()}

    def seconds(self) -> dict[str, float]:
        """Seconds of processor time so far, by name."""
        return {name: self._cpu_s(pid) - self._before_s[name] for name, pid in self._pids.items()}

    def ms_per_s(self) -> dict[str, float]:
        """Milliseconds of processor time in each second so far, by name."""
        elapsed_s = time.perf_counter() - self._began_s
        return {name: 1000 * used_s / elapsed_s for name, used_s in self.seconds().items()}

    def by(self, run: Run) -> Run:
        """The run, with the processor time of each process for one of its operations."""
        used_us = {name: 1e6 * it / run.operations for name, it in self.seconds().items()}
        return replace(run, cpu_us=used_us)


def cpu_us(runs: Sequence[Run], process: str | None = None) -> float:
    """The median of the processor µs for one operation, of one process or of all together."""
    if process is not None:
        return median(run.cpu_us[process] for run in runs)
    return median(sum(run.cpu_us.values()) for run in runs)


def cpu_rows(
    setting: object, ours: Mapping[str, Sequence[Run]], peers: Mapping[str, Sequence[Run]]
) -> list[dict[str, Any]]:
    """A row for each side: its rate, and its processor µs for one operation by process.

    Args:
        setting: what the sides have in common.
        ours: runs of each of our ways, by name.
        peers: those of others. The ratio of a row is that of its time to the cheapest of these.
    """
    sides = {**ours, **peers}
    processes = list(dict.fromkeys(name for runs in sides.values() for name in runs[0].cpu_us))
    least_us = min(map(cpu_us, peers.values()))
    return [
        {
            "setting": setting,
            "side": side,
            "per_s": middle(list(runs), "per_s"),
            **{
                f"{name}, µs": cpu_us(runs, name) if name in runs[0].cpu_us else "-"
                for name in processes
            },
            "all, µs": cpu_us(runs),
            "ratio": cpu_us(runs) / least_us,
        }
        for side, runs in sides.items()
    ]


async def resting(pids: Mapping[str, int], settle_s: float, seconds: float) -> dict[str, float]:
    """What each process uses at rest, in ms/s, after `settle_s` in which it comes to rest."""
    await past(settle_s)
    spent = Spent(pids)
    await past(seconds)
    return spent.ms_per_s()


async def past(seconds: float) -> None:
    """Returns after so many seconds."""
    async for elapsed_s in looks(seconds):
        if elapsed_s >= seconds:
            return
