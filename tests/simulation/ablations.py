"""Rules switched off one by one: the simulation has to notice each loss.

Each entry takes the place of one check of the product by a patch. A rule whose loss no seed shows
is not needed, or the workload is poor.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.simulation.losses import (
    acknowledgements,
    links,
    logs,
    snapshots,
    transactions,
    visibility,
)
from tests.simulation.losses.ablation import Ablation

ABLATIONS: tuple[Ablation, ...] = (
    *logs.ABLATIONS,
    *transactions.ABLATIONS,
    *visibility.ABLATIONS,
    *snapshots.ABLATIONS,
    *acknowledgements.ABLATIONS,
    *links.ABLATIONS,
)
"""The rules, in order of their letters."""


@contextmanager
def without(rule: str) -> Iterator[None]:
    """Switches a rule off; an empty name switches nothing off."""
    if not rule:
        yield
        return
    ablation = next(it for it in ABLATIONS if it.rule == rule)
    original = getattr(ablation.owner, ablation.name)
    with patch.object(ablation.owner, ablation.name, ablation.make(original)):
        yield
