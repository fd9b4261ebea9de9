"""A topic and a store on a memory broker."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.connector import MemoryConnector
from tests.support.coordinator.coordinated import CoordinatedTopic
from tests.support.pending_ack.store import StateStore


@pytest.fixture
async def topic(connector: MemoryConnector) -> AsyncIterator[CoordinatedTopic]:
    """A topic of one partition."""
    made = await CoordinatedTopic.create(connector, "orders", 1)
    yield made
    await made.close()


@pytest.fixture
async def store() -> StateStore:
    """A store that holds nothing."""
    return StateStore()
