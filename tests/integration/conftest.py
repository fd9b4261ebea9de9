"""What several folders of tests on real brokers share."""

from collections.abc import Iterator

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.processes.local import delete_topics


@pytest.fixture(scope="session")
def second_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A second broker that all tests of a process share; a test that stops one starts its own."""
    with LocalCluster("w", tmp_path_factory.mktemp("kafka-w"), fast_start=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def empty_kafka(second_kafka: LocalCluster) -> LocalCluster:
    """The second broker, without topics: system topics are the whole cluster's."""
    second_kafka.start()  # a test that killed the broker may have failed before it started it again
    delete_topics(second_kafka.bootstrap)
    return second_kafka
