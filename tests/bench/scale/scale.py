"""How costs grow with the number of replicated pairs, and of data partitions with transactions.

Each size is a row, and the rows of other sizes that were measured before stay in the report, so
that a size may be measured in a run of its own.

Sizes: PAIRS, PARTITIONS (the largest number of each; the others are a tenth and a hundredth; 0:
none), PARTS (how many of the three, the largest first).
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.bench.harness import OUTPUT, report, size
from tests.bench.scale import pairs, partitions


async def run() -> None:
    """Measures and reports, the smallest first."""
    parts = size("PARTS", 3)
    most = size("PAIRS", 10_000)
    await _rows("pairs", pairs.measured, _sizes(most, (1, 10, 100)[:parts]))
    most = size("PARTITIONS", 5_000)
    await _rows("partitions", partitions.measured, _sizes(most, (1, 5, 50)[:parts]))


def _sizes(most: int, parts: Sequence[int]) -> list[int]:
    return sorted(most // part for part in parts) if most else []


async def _rows(
    name: str, measured: Callable[[int], Awaitable[dict[str, Any]]], sizes: Sequence[int]
) -> None:
    """Reports after each size."""
    source = OUTPUT / f"scale_{name}.json"
    for number in sizes:
        row = await measured(number)
        known = json.loads(source.read_text())["rows"] if source.exists() else []
        rows = [*(one for one in known if one[name] != number), row]
        rows.sort(key=lambda one: one[name])
        command = f"{name.upper()}={rows[-1][name]} make bench CASE=scale"
        report(f"scale_{name}", rows, command=command)
