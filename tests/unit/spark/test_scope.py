from collections.abc import Sequence

import pytest

from connectors.errors import FatalError
from connectors.memory.broker import MemoryBroker
from connectors.memory.connector import MemoryAdmin
from connectors.spark.source import OffsetRange
from pipeline.jobs.scope import resolve_scope
from schemas.placement import system_partition
from schemas.topics import TXN_MARKERS, TopicSpec
from schemas.values import EndOffset, TopicPartition

MARKER_PARTITIONS = 3
ORDERS = TopicPartition("orders", 0)
SERVING = TopicPartition(TXN_MARKERS, system_partition(ORDERS, MARKER_PARTITIONS))


@pytest.fixture
def broker() -> MemoryBroker:
    """One data partition with three records, and txn-markers."""
    broker = MemoryBroker()
    broker.create_topic(TopicSpec("orders", 1))
    broker.create_topic(TopicSpec(TXN_MARKERS, MARKER_PARTITIONS))
    for _ in range(3):
        broker.append(ORDERS, None, b"v", None)
    return broker


class MarkerInBetween(MemoryAdmin):
    """The last marker is written just after the data's ends were read."""

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """Reads, and then the marker arrives."""
        found = await super().end_offsets(partitions, committed=committed)
        if ORDERS in found:
            self._broker.append(SERVING, b"k", b"v", None)
        return found


async def test_a_marker_written_when_the_data_ended_is_in_range(broker: MemoryBroker):
    """D2: the markers' ends are read last, so no known outcome is left out."""
    scope = await resolve_scope(MarkerInBetween(broker), ["orders"])
    assert scope.data == (OffsetRange(ORDERS, 0, 3),)
    assert scope.markers == (OffsetRange(SERVING, 0, 1),)


async def test_only_the_marker_partitions_that_serve_the_topics_are_read(broker: MemoryBroker):
    """One data partition needs one partition of txn-markers; a topic named twice is read once."""
    scope = await resolve_scope(MemoryAdmin(broker), ["orders", "orders"])
    assert [read.data for read in scope.markers] == [SERVING]
    assert [read.data for read in scope.data] == [ORDERS]


async def test_an_audit_begins_at_the_log_start(broker: MemoryBroker):
    """What retention took is not asked for."""
    broker.delete_records(ORDERS, 2)
    scope = await resolve_scope(MemoryAdmin(broker), ["orders"])
    assert scope.data == (OffsetRange(ORDERS, 2, 3),)


async def test_a_missing_topic_is_named(broker: MemoryBroker):
    """Before anything is read."""
    with pytest.raises(FatalError, match="nowhere"):
        await resolve_scope(MemoryAdmin(broker), ["orders", "nowhere"])


async def test_a_cluster_without_outcomes_says_how_to_get_them(broker: MemoryBroker):
    """Without txn-markers nothing could be decided; the hint is to start a worker."""
    broker.delete_topic(TXN_MARKERS)
    with pytest.raises(FatalError, match="stilltide worker"):
        await resolve_scope(MemoryAdmin(broker), ["orders"])
