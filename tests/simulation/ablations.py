"""Rules switched off one by one: the simulation has to notice each loss.

Each entry takes the place of one check of the product by a patch. A rule whose loss no seed shows
is not needed, or the workload is poor.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tests.simulation.losses import (
    acknowledgements,
    links,
    logs,
    prepared,
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
    *prepared.ABLATIONS,
)
"""The rules, in order of their letters."""


def named(rules: str) -> tuple[Ablation, ...]:
    """The ablations of a rule, or of several: `B2+C1b`."""
    by_rule = {it.rule: it for it in ABLATIONS}
    return tuple(by_rule[rule] for rule in rules.split("+"))


@contextmanager
def without(rules: str) -> Iterator[None]:
    """Switches a rule off, or several at once; an empty name switches nothing off."""
    with ExitStack() as stack:
        for ablation in named(rules) if rules else ():
            original = getattr(ablation.owner, ablation.name)
            loss = ablation.make(original)
            stack.enter_context(patch.object(ablation.owner, ablation.name, loss))
        yield
