"""A memory broker, a worker of two coordinators, and a client; traces of a memory cluster."""

from collections.abc import AsyncIterator, Iterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.topics import TopicSpec
from stilltide.testing import MemoryCluster
from tests.support.coordinator.worker_client import TOPICS
from tests.support.coordinator.worker_memory import MemoryWorker
from tests.support.traces import Traces, current_span_id, traced


@pytest.fixture
async def broker() -> MemoryBroker:
    """A broker with two topics of three partitions."""
    broker = MemoryBroker()
    for topic in TOPICS:
        broker.create_topic(TopicSpec(topic, 3))
    return broker


@pytest.fixture
async def worker(connector: MemoryConnector) -> AsyncIterator[MemoryWorker]:
    """A worker with two coordinators."""
    async with MemoryWorker(connector, coordinators=2) as made:
        yield made


@pytest.fixture
async def client(
    connector: MemoryConnector, worker: MemoryWorker
) -> AsyncIterator[TransactionClient]:
    """A client."""
    async with TransactionClient(connector=connector) as made:
        yield made


@pytest.fixture
def traces() -> Iterator[Traces]:
    """Everything is traced."""
    with traced(Traces()) as made:
        yield made
    assert current_span_id() == 0


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """A cluster with a worker."""
    async with MemoryCluster({"orders": 1, "invoices": 1}) as made:
        yield made
