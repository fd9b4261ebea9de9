"""What the tests of workers share."""

from pathlib import Path
from uuid import uuid4

import pytest

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.processes.worker_process import Load, create_topics


@pytest.fixture(scope="module")
def bootstrap(empty_kafka: LocalCluster) -> str:
    """Address of a broker whose system topics are the module's own."""
    return empty_kafka.bootstrap


@pytest.fixture
async def load(bootstrap: str) -> Load:
    """Work on topics of the test's own."""
    name = uuid4().hex[:8]
    made = Load((f"orders-{name}", f"payments-{name}"), 600)
    await create_topics(bootstrap, *made.topics)
    return made


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    """The file of the workers' stderr."""
    return tmp_path / "worker.log"
