"""An empty log on the memory broker, and two who may own it."""

from collections.abc import AsyncIterator

import pytest

from stilltide.connectors.memory.connector import MemoryConnector
from tests.support.buffered_log.owner import Owner


@pytest.fixture
async def owner(connector: MemoryConnector) -> AsyncIterator[Owner]:
    """One owner, not begun."""
    made = Owner(connector)
    yield made
    await made.close()


@pytest.fixture
async def successor(connector: MemoryConnector) -> AsyncIterator[Owner]:
    """Another owner of the same log, not begun."""
    made = Owner(connector)
    yield made
    await made.close()
