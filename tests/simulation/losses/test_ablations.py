"""Each loss fits the check whose place it takes, so that worlds notice the loss and no crash."""

import inspect

import pytest

from tests.simulation.ablations import ABLATIONS
from tests.simulation.losses.ablation import Ablation
from tests.simulation.losses.table import fails


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda it: it.rule)
def test_a_loss_takes_the_arguments_of_its_check(ablation: Ablation):
    """A call of the check is a call of its loss: parameters may not be more, nor fewer."""
    check = inspect.getattr_static(ablation.owner, ablation.name)
    loss = ablation.make(getattr(ablation.owner, ablation.name))
    if isinstance(check, property):
        assert isinstance(loss, property)
        return
    names = inspect.signature(getattr(ablation.owner, ablation.name)).parameters.values()
    given = [it.name for it in names if it.kind in {it.POSITIONAL_OR_KEYWORD, it.VAR_POSITIONAL}]
    named = {it.name: it for it in names if it.kind in {it.KEYWORD_ONLY, it.VAR_KEYWORD}}
    inspect.signature(loss).bind(*given, **named)


@pytest.mark.slow
@pytest.mark.parametrize("ablation", [it for it in ABLATIONS if it.tests], ids=lambda it: it.rule)
def test_a_loss_that_worlds_do_not_notice_fails_tests(ablation: Ablation):
    """The tests that the table names beside a rule fail without the rule."""
    assert fails(ablation)
