"""Looks for seeds that notice the loss of each rule, and writes the table of what was found."""

import os
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.simulation.losses.ablation import Ablation

PAGE = Path(__file__).parents[3] / "docs/internals/testing.md"
BEGIN, END = "<!-- rules switched off: begin -->", "<!-- rules switched off: end -->"

_PASSED, _FAILED = 0, 1
"""Exit codes of pytest."""

TASK_SEEDS = 8
"""Most seeds that a process tries before it tells what it has found."""

Anomalies = Callable[[int, str], tuple[str, ...]]
"""The anomalies of the world of a seed without a rule."""


class Noticed(NamedTuple):
    """What noticed the loss of a rule: how many seeds it took, and the first anomaly."""

    seeds: int
    anomaly: str


def noticed(anomalies: Anomalies, rule: str, seeds: range) -> tuple[int, str] | None:
    """The first seed that shows the loss, and what it shows."""
    for seed in seeds:
        shown = anomalies(seed, rule)
        if shown:
            return seed, shown[0]
    return None


def search(
    anomalies: Anomalies, rules: Iterable[str], seeds: range, jobs: int
) -> Iterator[tuple[str, Noticed | None]]:
    """Tries each rule, with more and more seeds until one notices; yields what is settled."""
    left, first, size = [*rules], seeds.start, 1
    with ProcessPoolExecutor(jobs) as pool:
        while left and first < seeds.stop:
            part = range(first, min(first + size, seeds.stop))
            shown = _round(pool, anomalies, left, part)
            for rule, found in shown.items():
                if found is not None:
                    yield rule, Noticed(found[0] - seeds.start + 1, found[1])
            left = [rule for rule in left if shown[rule] is None]
            first, size = part.stop, min(2 * size, 64)
    for rule in left:
        yield rule, None


def _round(
    pool: Executor, anomalies: Anomalies, rules: list[str], seeds: range
) -> dict[str, tuple[int, str] | None]:
    tasks = [
        (rule, seeds[first : first + TASK_SEEDS])
        for rule in rules
        for first in range(0, len(seeds), TASK_SEEDS)
    ]
    shown: dict[str, tuple[int, str] | None] = dict.fromkeys(rules)
    found = pool.map(partial(noticed, anomalies), *zip(*tasks, strict=True))
    for (rule, _), one in zip(tasks, found, strict=True):
        shown[rule] = shown[rule] or one
    return shown


def fails(ablation: Ablation) -> bool:
    """Whether the tests of a rule fail without the rule."""
    plugin = "-p no:xdist -p no:cacheprovider -p tests.simulation.losses.plugin"
    command = [sys.executable, "-m", "pytest", "-q", "-x", *plugin.split(), ablation.tests]
    run = subprocess.run(
        command,
        cwd=PAGE.parents[2],
        env={**os.environ, "ABLATE": ablation.rule},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in {_PASSED, _FAILED}, run.stdout + run.stderr
    return run.returncode == _FAILED


def table(
    ablations: Iterable[Ablation],
    found: dict[str, Noticed | None],
    seeds: int,
    failed: Container[str] = (),
) -> str:
    """The table of a page: rule, what is switched off, seeds until noticed, what was noticed.

    Args:
        ablations: the rules.
        found: what worlds have noticed.
        seeds: how many worlds were tried.
        failed: the rules whose tests have failed without the rule.
    """
    lines = [
        "| rule | what is switched off | seeds | what is noticed |",
        "| --- | --- | --- | --- |",
    ]
    for one in ablations:
        count, what = _shown(found[one.rule], seeds)
        if found[one.rule] is None and one.covered:
            what += f": {one.covered}"
        if one.rule in failed:
            what += f"; {one.tests} fails"
        pair = f"{one.rule}+{one.covered_by}"
        if pair in found:
            pair_count, pair_what = _shown(found[pair], seeds)
            what += f". Without {one.covered_by} as well ({pair_count}): {pair_what}"
        lines.append(f"| {one.rule} | {one.text} | {count} | {what} |")
    return "\n".join(lines)


def _shown(how: Noticed | None, seeds: int) -> tuple[str, str]:
    """How many seeds it took, and what they have shown."""
    if how is None:
        return f"not by {seeds}", "nothing"
    return str(how.seeds), how.anomaly.partition(":")[0]


def write(text: str, page: Path = PAGE) -> None:
    """Puts a table between the two marker comments of a page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
