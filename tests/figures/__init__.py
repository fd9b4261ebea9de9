"""Draws the pictures of the documentation (`make figures`, or `python -m tests.figures`)."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.figures.bars import at_rest, read_again
from tests.figures.charts import (
    growth_of_pairs,
    growth_of_partitions,
    transaction_latencies,
    transaction_rates,
)
from tests.figures.layers import layers
from tests.figures.sequences import commit, fail_over, read, snapshot
from tests.figures.states import transaction_states
from tests.figures.system import system

ROOT = Path(__file__).parents[2]

FOLDER = ROOT / "docs" / "img"
BENCH = FOLDER / "bench"
"""What cases of `make bench` have written, for charts."""

FIGURES: Mapping[str, Callable[[], str]] = {
    "commit.svg": commit,
    "fail-over.svg": fail_over,
    "fail-over-reads.svg": lambda: read_again(BENCH / "failover.json"),
    "growth-partitions.svg": lambda: growth_of_partitions(BENCH / "scale_partitions.json"),
    "growth-pairs.svg": lambda: growth_of_pairs(BENCH / "scale_pairs.json"),
    "layers.svg": lambda: layers(ROOT),
    "read.svg": read,
    "snapshot.svg": snapshot,
    "rest.svg": lambda: at_rest(BENCH / "rest.json"),
    "system.svg": system,
    "transaction-latencies.svg": lambda: transaction_latencies(BENCH / "transactions.json"),
    "transaction-rates.svg": lambda: transaction_rates(BENCH / "transactions.json"),
    "transaction-states.svg": transaction_states,
}
"""How the text of each picture is made; the same sources give the same bytes."""
