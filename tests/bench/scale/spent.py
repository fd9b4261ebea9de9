"""Processor time that processes use over a stretch of time."""

import time
from collections.abc import Mapping

from tests.bench.harness import cpu_s, looks


class Spent:
    """Processor time from its construction on.

    Args:
        pids: the processes, by what the report calls them.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._began_s = time.perf_counter()
        self._before_s = {name: cpu_s(pid) for name, pid in pids.items()}

    def ms_per_s(self) -> dict[str, float]:
        """Milliseconds of processor time in each second so far, by name."""
        elapsed_s = time.perf_counter() - self._began_s
        return {
            name: 1000 * (cpu_s(pid) - self._before_s[name]) / elapsed_s
            for name, pid in self._pids.items()
        }


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
