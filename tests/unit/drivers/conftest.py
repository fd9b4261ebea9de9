"""A memory broker and its connector."""

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker of the test's own."""
    return MemoryBroker()


@pytest.fixture
def connector(broker: MemoryBroker) -> MemoryConnector:
    """The connector of that broker."""
    return MemoryConnector(broker)
