"""The directory of a scenario, which stays if the scenario fails."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.child import ROOT


@pytest.fixture
def kept(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A directory in `build/chaos`; a test that fails, or the variable KEEP, leaves it there."""
    name = "-".join(it for it in request.node.name.replace("]", "[").split("[") if it)
    directory = ROOT / "build" / "chaos" / f"{name}-{time.time_ns()}"
    failed = request.session.testsfailed
    yield directory
    if request.session.testsfailed == failed and "KEEP" not in os.environ:
        shutil.rmtree(directory)
        return
    sys.stdout.write(f"histories and logs are in {directory}\n")
    for data in directory.glob("*/**/kafka"):
        shutil.rmtree(data)
