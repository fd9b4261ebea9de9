"""The compose project that the tests of this folder share; it fails, never skips."""

from collections.abc import Iterator

import pytest

from tests.support.processes.containers import Compose, compose_project


@pytest.fixture(scope="session")
def compose() -> Iterator[Compose]:
    """The project, healthy, with Prometheus."""
    with compose_project() as project:
        project("up", "--detach", "--wait", "--wait-timeout", "580")
        project("--profile", "metrics", "up", "--detach", "--wait", "prometheus")
        yield project
