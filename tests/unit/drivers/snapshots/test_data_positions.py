"""What a probe reads: offsets of one topic id each, and of every coordinator's log (E1, E8)."""

from collections.abc import Sequence

import pytest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryAdmin
from stilltide.pipeline.core.snapshots.buffer import DataPosition
from stilltide.pipeline.drivers.snapshots.logs import coordinator_log_ends, data_positions
from stilltide.schemas.topics import TXN_LOG, TopicSpec
from stilltide.schemas.values import EndOffset, Offset, TopicPartition

ORDERS = TopicPartition("orders", 0)


class BusyAdmin(MemoryAdmin):
    """Others change the topic while it reads start offsets."""

    def __init__(self, broker: MemoryBroker, *, created_anew: bool) -> None:
        super().__init__(broker)
        self._cluster = broker
        self._created_anew = created_anew

    async def start_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """See `LogAdmin.start_offsets`."""
        self._cluster.delete_topic(ORDERS.topic)
        if self._created_anew:
            self._cluster.create_topic(TopicSpec(ORDERS.topic, 1))
        return await super().start_offsets(partitions)


@pytest.fixture
def broker() -> MemoryBroker:
    """A broker with three records, the first of which was deleted."""
    made = MemoryBroker()
    made.create_topic(TopicSpec(ORDERS.topic, 1))
    for _ in range(3):
        made.append(ORDERS, None, b"plain", None)
    made.delete_records(ORDERS, Offset(1))
    return made


async def test_positions_are_those_of_one_topic_id(broker: MemoryBroker):
    """E8: with the id; what the cluster does not have is left out."""
    asked = [ORDERS, TopicPartition(ORDERS.topic, 1), TopicPartition("nothing", 0)]
    assert await data_positions(MemoryAdmin(broker), asked) == {
        ORDERS: DataPosition(
            broker.topics[ORDERS.topic].description.topic_id,
            EndOffset(1),
            EndOffset(3),
            EndOffset(3),
        )
    }


@pytest.mark.parametrize("created_anew", [True, False])
async def test_a_topic_that_changes_meanwhile_is_left_for_the_next_try(
    broker: MemoryBroker, *, created_anew: bool
):
    """E8: offsets of one topic are never reported with the id of another."""
    with pytest.raises(RetriableError, match="created or deleted"):
        await data_positions(BusyAdmin(broker, created_anew=created_anew), [ORDERS])


async def test_every_coordinator_there_is_counts(broker: MemoryBroker):
    """E1 (2): partitions of txn-log as they are now; without the topic it fails."""
    admin = MemoryAdmin(broker)
    with pytest.raises(FatalError, match="does not exist"):
        await coordinator_log_ends(admin)
    broker.create_topic(TopicSpec(TXN_LOG, 2))
    broker.append(TopicPartition(TXN_LOG, 1), None, b"entry", None)
    assert await coordinator_log_ends(admin) == {0: 0, 1: 1}
