"""A memory broker, a worker of two coordinators, and a client."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.client import TransactionClient
from stilltide.schemas.topics import TopicSpec
from tests.support.coordinator.worker_client import TOPICS
from tests.support.coordinator.worker_memory import MemoryWorker


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
