"""Closed loops, interleaved rounds, medians, and one JSON file for each case.

Machines are noisy, so everything that is compared runs in turn within one run, and only ratios of
medians are claimed.
"""

import asyncio
import gc
import json
import os
import platform
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

OUTPUT = Path("build/bench")

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One closed loop: what it did per second, and how long one operation took.

    Attributes:
        cpu_us: processor time for one operation, by process (`Spent.by`).
    """

    per_s: float
    p50_ms: float
    p99_ms: float
    operations: int
    extra: dict[str, float]
    cpu_us: Mapping[str, float] = field(default_factory=dict[str, float])


async def closed_loop(
    operation: Callable[[], Awaitable[object]], callers: int, seconds: float
) -> Run:
    """`callers` tasks that each call `operation` again as soon as it returns."""
    gc.collect()  # no loop pays for what another left behind
    latencies: list[float] = []
    clock = time.perf_counter
    began = clock()
    until = began + seconds

    async def call() -> None:
        while (start := clock()) < until:
            await operation()
            latencies.append(clock() - start)

    await asyncio.gather(*[call() for _ in range(callers)])
    return summary(latencies, clock() - began)


def summary(latencies: list[float], elapsed_s: float, **extra: float) -> Run:
    """Makes a `Run` of one loop's latencies in seconds."""
    latencies.sort()
    count = len(latencies)
    return Run(
        per_s=count / elapsed_s,
        p50_ms=latencies[count // 2] * 1000,
        p99_ms=latencies[min(count - 1, count * 99 // 100)] * 1000,
        operations=count,
        extra=extra,
    )


async def looks(every_s: float, *, wait_s: float = 120.0) -> AsyncIterator[float]:
    """Comes round every `every_s` seconds, or as soon as the caller is back; seconds so far.

    Raises:
        TimeoutError: after `wait_s` without what was awaited.
    """
    loop = asyncio.get_running_loop()
    began = due = loop.time()
    while (now := loop.time()) - began < wait_s:
        yield now - began
        due = max(due + every_s, loop.time())
        turn = asyncio.Event()
        loop.call_at(due, turn.set)
        await turn.wait()
    raise TimeoutError(f"nothing was seen in {wait_s:g} s")


def rotated(names: list[T], by: int) -> list[T]:
    """The names in turn, beginning elsewhere each time: none always runs after the same other."""
    by %= len(names)
    return names[by:] + names[:by]


def middle(runs: list[Run], name: str) -> float:
    """The median of one figure over the rounds."""
    return median(getattr(run, name) if hasattr(run, name) else run.extra[name] for run in runs)


def cpu_s(pid: int) -> float:
    """Processor time a process has used so far, all its threads together."""
    return sum(_times_s(pid)[:2])


def cpu_with_children_s(pid: int) -> float:
    """Processor time of a process and its children, also of those that have ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    used_s = sum(_times_s(pid))
    for child in children:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            used_s += cpu_s(int(child))
    return used_s


def _times_s(pid: int) -> list[float]:
    """Processor time of a process: user, system, and both of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]


def rss_mib(pid: int) -> float:
    """Memory a process holds just now."""
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


def rss_peak_mib(pid: int) -> float:
    """The most memory a process has held so far."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(line) / 1024


def size(name: str, default: int) -> int:
    """A size that `make bench CASE=... NAME=...` may set; what was set is named in the report."""
    given = os.environ.get(name)
    if given is None:
        return default
    _SIZES[name] = int(given)
    return int(given)


_SIZES: dict[str, int] = {}


def report(
    case: str,
    rows: list[dict[str, Any]],
    processor_time: Sequence[dict[str, Any]] = (),
    **more: Any,
) -> None:
    """Prints the tables and writes `build/bench/<case>.json`.

    Args:
        case: its name.
        rows: of its table.
        processor_time: rows of a second table (`cpu_rows`).
        more: goes into the file only.
    """
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    tables = {"rows": _rounded(rows, 3)}
    if processor_time:
        tables["processor_time"] = _rounded(processor_time, 2)
    result = {
        "case": case,
        "machine": machine,
        "command": " ".join(
            [f"make bench CASE={case}", *(f"{name}={value}" for name, value in _SIZES.items())]
        ),
        **tables,
        **more,
    }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / f"{case}.json").write_text(json.dumps(result, indent=2) + "\n")
    for name, printed in tables.items():
        title = case if name == "rows" else f"{case}, processor time"
        table = Table(title=f"{title} ({machine})", title_justify="left")
        for column in printed[0]:
            table.add_column(column, justify="right")
        for row in printed:
            table.add_row(
                *(
                    f"{value:,}" if isinstance(value, float | int) else str(value)
                    for value in row.values()
                )
            )
        Console(width=200).print(table)


def _rounded(rows: Sequence[dict[str, Any]], digits: int) -> list[dict[str, Any]]:
    return [
        {
            name: round(value, digits) if isinstance(value, float) else value
            for name, value in row.items()
        }
        for row in rows
    ]
