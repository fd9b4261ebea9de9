"""Fixtures for tests on a real broker; without Java they fail, they never skip."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from connectors.local.cluster import LocalCluster


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A broker that all tests of the session share; a test that stops one starts its own."""
    with LocalCluster("a", tmp_path_factory.mktemp("kafka"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bootstrap(kafka: LocalCluster) -> str:
    """Address of the shared broker."""
    return kafka.bootstrap


@pytest.fixture
def topic_name() -> str:
    """A topic name that no other test uses; the topic is the test's to create."""
    return f"test-{uuid4().hex[:12]}"
