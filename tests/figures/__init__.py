"""Draws the pictures of the documentation (`make figures`, or `python -m tests.figures`)."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tests.figures.commit import commit
from tests.figures.layers import layers
from tests.figures.states import transaction_states
from tests.figures.system import system

ROOT = Path(__file__).parents[2]

FOLDER = ROOT / "docs" / "img"

FIGURES: Mapping[str, Callable[[], str]] = {
    "commit.svg": commit,
    "layers.svg": lambda: layers(ROOT),
    "system.svg": system,
    "transaction-states.svg": transaction_states,
}
"""How the text of each picture is made; the same sources give the same bytes."""
