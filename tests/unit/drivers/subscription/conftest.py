"""A topic that is read."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.connector import MemoryConnector
from tests.support.coordinator.coordinated import CoordinatedTopic


@pytest.fixture
async def topic(connector: MemoryConnector) -> AsyncIterator[CoordinatedTopic]:
    """A topic of two partitions."""
    made = await CoordinatedTopic.create(connector, "orders", 2)
    yield made
    await made.close()
