"""The broker of the scenarios."""

from collections.abc import Iterator

import pytest

from stilltide.connectors.local.cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker for all scenarios of a file: what one leaves behind the next must bear."""
    with LocalCluster("chaos", tmp_path_factory.mktemp("chaos"), fast_start=True) as cluster:
        yield cluster
