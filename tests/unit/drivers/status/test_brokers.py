"""Brokers that are up are counted each time, those that the cluster knows from time to time."""

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.status.values import BrokersStatus
from stilltide.pipeline.drivers.status.cluster import BrokersLook
from stilltide.schemas.topics import BrokerFigures


@pytest.mark.parametrize(("rest_s", "registered"), [(3600, 3), (0, 2)])
async def test_a_broker_that_goes_down_is_missing_at_once(rest_s: int, registered: int):
    """Also while the number of brokers that the cluster knows is of an earlier question."""
    broker = MemoryBroker(figures=BrokerFigures(3, 1, 3))
    look = BrokersLook(MemoryConnector(broker).admin(), rest_s)
    assert await look.read() == BrokersStatus(3, 3)
    broker.figures = BrokerFigures(2, 1, 2)
    found = await look.read()
    assert found == BrokersStatus(2, registered)
    assert found.missing == registered - 2
    await look.close()
