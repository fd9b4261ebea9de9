"""A plugin of pytest that switches off the rule that `ABLATE` names."""

import os
from contextlib import ExitStack

from tests.simulation.ablations import without

_SWITCHED = ExitStack()


def pytest_configure() -> None:
    """Switches the rule off before tests are imported."""
    _SWITCHED.enter_context(without(os.environ["ABLATE"]))


def pytest_unconfigure() -> None:
    """Switches the rule on again."""
    _SWITCHED.close()
