"""What several folders of tests on real brokers share."""

from collections.abc import Iterator

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.links.link_process import Clusters


@pytest.fixture(scope="module")
def clusters(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """The shared broker, `a`, and another one."""
    with LocalCluster("b", tmp_path_factory.mktemp("kafka-b"), fast_start=True) as other:
        yield Clusters([kafka, other])
