"""Short histories of resolvers break no decision, and show the loss of a rule."""

import pytest

from tests.simulation.ablations import without
from tests.simulation.campaigns.resolving import resolve


def test_resolvers_break_no_decision(capfd: pytest.CaptureFixture[str]):
    """L4, L5: each transaction ends as its database, also when programs die at any step."""
    assert resolve(range(1, 201)) == 0
    assert capfd.readouterr().out == "200 rounds from 1 on, 0 broken\n"


def test_a_guess_is_noticed(capfd: pytest.CaptureFixture[str]):
    """L6: a resolver that aborts what a database has not decided breaks decisions."""
    with without("L6"):
        assert resolve(range(1, 51)) == 1
    assert capfd.readouterr().out.startswith("round ")
