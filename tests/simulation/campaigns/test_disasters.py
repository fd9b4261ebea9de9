"""The campaign of lost clusters: what it passes, and what it must notice."""

from functools import partial

import pytest

from tests.simulation.campaigns.disasters import Disasters, plan_of
from tests.simulation.world import run_world

QUIET = (True,)
"""One loss and its return, both after silence."""


@pytest.mark.parametrize("seed", [5])
def test_nothing_is_read_again_after_silence(seed: int):
    """Groups go on where they were, on both ways, also after faults under load."""
    result = run_world(partial(Disasters, plan_of(seed), QUIET))
    assert (result.history.unfinished, result.history.exits) == ([], [])


def test_groups_that_are_not_carried_over_are_noticed(monkeypatch: pytest.MonkeyPatch):
    """Where nobody has turned the carrying over on, both groups read again on both ways."""
    monkeypatch.setattr(Disasters, "_run_operator", lambda *_: None)
    result = run_world(partial(Disasters, plan_of(5), QUIET))
    noticed = [it for it in result.history.unfinished if "given again" in it]
    assert [it.split(":")[0] for it in noticed] == [
        "of-subscription out after silence",
        "of-any-client out after silence",
        "of-subscription back after silence",
        "of-any-client back after silence",
    ]
