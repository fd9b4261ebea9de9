"""How costs grow with the number of replicated pairs, and of data partitions with transactions.

Sizes: PAIRS, PARTITIONS (the largest number of each; the others are a tenth and a hundredth).
"""

from tests.bench.harness import report, size
from tests.bench.scale import pairs, partitions


async def run() -> None:
    """Measures and reports, the smallest first."""
    most = size("PAIRS", 10_000)
    report("scale_pairs", [await pairs.measured(most // part) for part in (100, 10, 1)])
    most = size("PARTITIONS", 5_000)
    report("scale_partitions", [await partitions.measured(most // part) for part in (50, 5, 1)])
