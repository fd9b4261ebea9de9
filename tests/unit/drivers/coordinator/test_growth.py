"""C14: coordinators are added to a running cluster, and never taken away."""

import pytest

from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.drivers.coordinator.growth import grow_coordinators
from stilltide.pipeline.errors import ConfigError, CoordinatorCountError
from stilltide.schemas.topics import TXN_LOG, TXN_MARKERS, TXN_REQUESTS, system_topics

pytestmark = pytest.mark.topics(*system_topics(coordinators=2, partitions=1))


def counts(broker: MemoryBroker) -> list[int]:
    """The partitions of the coordinators' topics, and of another one."""
    return [len(broker.topics[name].logs) for name in (TXN_LOG, TXN_REQUESTS, TXN_MARKERS)]


async def test_a_higher_number_adds_partitions(broker: MemoryBroker):
    """Both topics of coordinators grow, and the cluster then fits the settings."""
    admin = MemoryConnector(broker).admin()
    await grow_coordinators(admin, 5)
    assert counts(broker) == [5, 5, 1]
    await admin.ensure_topics(system_topics(coordinators=5, partitions=1))
    await grow_coordinators(admin, 5)
    assert counts(broker) == [5, 5, 1]


async def test_a_growth_that_was_cut_off_is_completed(broker: MemoryBroker):
    """A worker that died between the two topics leaves the rest to the next worker."""
    broker.add_partitions(TXN_LOG, 5)
    await grow_coordinators(MemoryConnector(broker).admin(), 5)
    assert counts(broker) == [5, 5, 1]


@pytest.mark.parametrize("grown", [(TXN_LOG, TXN_REQUESTS), (TXN_LOG,)])
async def test_a_lower_number_is_refused_and_changes_nothing(
    broker: MemoryBroker, grown: tuple[str, ...]
):
    """The error names both numbers and the next step, also if only txn-log has grown."""
    for name in grown:
        broker.add_partitions(name, 4)
    before = counts(broker)
    with pytest.raises(CoordinatorCountError) as caught:
        await grow_coordinators(MemoryConnector(broker).admin(), 2)
    assert isinstance(caught.value, ConfigError)
    assert "has 4 coordinators, and the setting coordinators is 2" in caught.value.primary
    assert caught.value.hint == "set coordinators to 4, or to more"
    assert counts(broker) == before


async def test_a_new_cluster_is_left_to_the_creation_of_topics():
    """Topics that do not exist are not created here."""
    broker = MemoryBroker()
    await grow_coordinators(MemoryConnector(broker).admin(), 3)
    assert broker.topics == {}
