"""Runs the worlds of many seeds in several processes, and says how far the run is."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import NamedTuple, TextIO

SHOWN = 5
"""Anomalies of a seed that are printed."""

SHRUNK = 3
"""Failing seeds of a run whose plans are made smaller."""

PROGRESS_S = 30.0
"""Time between two lines of progress, where no terminal shows them."""

_TERMINAL_S = 0.5


class Outcome(NamedTuple):
    """What a seed gave."""

    seed: int
    virtual_s: float
    anomalies: tuple[str, ...]


class Tally:
    """How many seeds have run, how many failed, and how fast.

    Args:
        seeds: the seeds that are to run.
        out: takes lines of progress; a terminal shows the last of them only.
    """

    def __init__(self, seeds: range, out: TextIO) -> None:
        self._seeds = seeds
        self._out = out
        self._in_place = out.isatty()
        self._began_s = self._shown_s = time.perf_counter()
        self._virtual_s = 0.0
        self.done = 0
        self.failed = 0

    def add(self, outcome: Outcome) -> None:
        """Counts an outcome, and shows the progress now and then."""
        self.done += 1
        self.failed += bool(outcome.anomalies)
        self._virtual_s += outcome.virtual_s
        now_s = time.perf_counter()
        if now_s - self._shown_s < (_TERMINAL_S if self._in_place else PROGRESS_S):
            return
        self._shown_s = now_s
        rate = self.done / (now_s - self._began_s)
        text = f"{self.done} of {len(self._seeds)} seeds, {self.failed} failed, {rate:.1f} seeds/s"
        print(f"\r{text}" if self._in_place else text, file=self._out, flush=True, end=self._end)

    @property
    def _end(self) -> str:
        return "" if self._in_place else "\n"

    def clear(self) -> None:
        """Removes the line of progress, before another line is printed."""
        if self._in_place:
            print("\r\033[K", file=self._out, flush=True, end="")

    @property
    def summary(self) -> str:
        """The last line of a run."""
        took_s = time.perf_counter() - self._began_s
        rates = f"{self.done / took_s:.1f} seeds/s, {self._virtual_s / took_s:.0f}"
        return (
            f"{self.done} seeds from {self._seeds.start} on, {self.failed} failed, "
            f"{rates} virtual seconds a second"
        )


def simulate(
    seeds: range, jobs: int, of_seed: Callable[[int], Outcome], smaller: Callable[[int], object]
) -> int:
    """Runs worlds, and prints what is wrong with them; returns the exit code.

    Ctrl-C ends the run: the last line speaks of the seeds that have run until then.

    Args:
        seeds: the seeds.
        jobs: how many processes run worlds.
        of_seed: runs the world of a seed.
        smaller: makes the plan of a failing seed smaller.
    """
    tally = Tally(seeds, sys.stderr)
    try:
        for outcome in outcomes(seeds, jobs, of_seed):
            tally.add(outcome)
            if outcome.anomalies:
                tally.clear()
                for anomaly in outcome.anomalies[:SHOWN]:
                    print(f"seed {outcome.seed}: {anomaly}", flush=True)
                if tally.failed <= SHRUNK:
                    print(f"seed {outcome.seed}: {smaller(outcome.seed)}", flush=True)
    except KeyboardInterrupt:
        tally.clear()
        print("interrupted", file=sys.stderr)
    tally.clear()
    print(tally.summary)
    return 1 if tally.failed or tally.done < len(seeds) else 0


def outcomes(seeds: range, jobs: int, of_seed: Callable[[int], Outcome]) -> Iterator[Outcome]:
    """The outcomes of seeds, in the order in which they come, of at most `jobs` processes."""
    if jobs == 1:
        yield from map(of_seed, seeds)
        return
    left = iter(seeds)
    with ProcessPoolExecutor(min(jobs, len(seeds)), initializer=_let_parent_end) as pool:
        running: set[Future[Outcome]] = set()
        for seed in left:
            running.add(pool.submit(of_seed, seed))
            if len(running) >= 2 * jobs:  # one waits for each process, so that none rests
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (it.result() for it in done)
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (it.result() for it in done)


def _let_parent_end() -> None:
    """Has Ctrl-C reach the parent alone, which ends its processes when their worlds have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
