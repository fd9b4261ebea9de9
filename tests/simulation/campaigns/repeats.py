"""Runs each seed many times, in processes with other hashes of strings: a seed is one run."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from tests.simulation.drawing.draw import draw
from tests.simulation.world import Result, run

PROCESSES = 10
"""Processes that share the repetitions; each has hashes of strings of its own."""

_ROOT = Path(__file__).parents[3]


def digest(result: Result) -> str:
    """A hash of a history and of the trace that led to it."""
    parts: list[str] = [str(result.turns), repr(result.virtual_s)]
    for field in fields(result.history):
        value = getattr(result.history, field.name)
        parts.append(repr(sorted(value) if isinstance(value, set) else value))  # pyright: ignore[reportUnknownArgumentType]
    parts += map(str, result.trace)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def print_digests(seeds: range, times: int, clusters: int) -> int:
    """Prints the digest of each run of each seed; returns the exit code."""
    for _ in range(times):
        for seed in seeds:
            print(seed, digest(run(draw(seed, clusters=clusters), traced=True)), flush=True)
    return 0


def repeat(seeds: range, times: int, jobs: int, clusters: int) -> int:
    """Runs each seed so many times, and says whether each gives one history; returns the exit code.

    Ctrl-C ends the run: the last line speaks of the runs until then.
    """
    shares = [len(range(number, times, PROCESSES)) for number in range(min(times, PROCESSES))]
    digests: dict[int, set[str]] = {}
    count = 0
    try:
        for first in range(0, len(shares), jobs):
            batch = range(first, min(first + jobs, len(shares)))
            for seed, of_run in _digests(batch, shares, seeds, clusters):
                count += 1
                digests.setdefault(seed, set()).add(of_run)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    several = [seed for seed in seeds if len(digests.get(seed, ())) > 1]
    for seed in several:
        print(f"seed {seed} gives {len(digests[seed])} histories")
    print(
        f"{count} runs of {len(seeds)} seeds from {seeds.start} on, in {len(shares)} processes "
        f"with other hashes of strings: {len(several)} seeds of more than one history"
    )
    return 1 if several or count < times * len(seeds) else 0


def _digests(
    batch: range, shares: list[int], seeds: range, clusters: int
) -> Iterator[tuple[int, str]]:
    """Seeds and digests of processes that run at the same time.

    Raises:
        subprocess.CalledProcessError: a process has failed.
    """
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.simulation", f"SEED={seeds.start}"),
                *(f"SEEDS={len(seeds)}", f"CLUSTERS={clusters}", f"DIGESTS={shares[number]}"),
            ],
            cwd=_ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(number + 1)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in batch
    ]
    for process in running:
        lines, _ = process.communicate()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        for line in lines.splitlines():
            seed, of_run = line.split()
            yield int(seed), of_run
