"""The profile `postgres` of the compose file: a shop whose sales are rows and records."""

import time

import pytest

from tests.support.looks import block_between_looks
from tests.support.processes.containers import TIMEOUT_S, Compose

PROFILE = ("--profile", "postgres")


@pytest.mark.timeout(1200)
def test_rows_and_records_are_the_same(compose: Compose):
    """The shop dies between two commits, Docker starts it again, and the worker asks PostgreSQL."""
    compose(*PROFILE, "up", "--detach", "--wait", "shop")
    until_s = time.monotonic() + TIMEOUT_S
    while (said := compose(*PROFILE, "logs", "shop").stdout).count("; dying") < 2:
        assert time.monotonic() < until_s, said
        block_between_looks()
    checked = compose(*PROFILE, "run", "--rm", "-T", "shop", "check")
    assert "the same" in checked.stdout
    compose(*PROFILE, "stop", "shop", "postgres")
