"""Snapshot writers with their coordinators on the memory broker (E)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from connectors.memory.broker import MemoryBroker
from pipeline.core.txn_buffer.writer import SnapshotLimits
from pipeline.drivers.snapshot_line import SnapshotLine
from pipeline.errors import RefusedError
from schemas.values import TopicPartition
from tests.support.snapshot_site import (
    ORDERS,
    SERVING,
    SnapshotSite,
    broker_with_orders,
    line_to,
    snapshot_site,
)
from tests.support.worker_memory import until


@pytest.fixture
async def broker() -> MemoryBroker:
    """A broker with the data topic."""
    return broker_with_orders()


@pytest.fixture
async def site(broker: MemoryBroker) -> AsyncIterator[SnapshotSite]:
    """A worker that takes snapshots on request only."""
    async with snapshot_site(broker) as made:
        yield made


@pytest.fixture
async def line(broker: MemoryBroker, site: SnapshotSite) -> AsyncIterator[SnapshotLine]:
    """Who asks it."""
    async with line_to(broker) as made:
        yield made


async def test_a_snapshot_stands_for_the_markers_it_has_absorbed(
    site: SnapshotSite, line: SnapshotLine
):
    """D4, E1: up to the first open transaction everything is decided without a marker."""
    committed, aborted, still_open = [await site.write(it) for it in (0, 1, 0)]
    await site.end(*committed, committed=True)
    await site.end(*aborted, committed=False)
    taken = await line.take(ORDERS)
    assert (taken.topic_id, taken.aborted_count) == (site.topic_id, 1)
    assert taken.max_read_position == still_open[1]
    assert site.seen(committed, aborted, still_open) == [True, False, None]
    await until(lambda: site.markers_left() == [])
    await site.end(*still_open, committed=True)
    taken = await line.take(ORDERS)
    assert taken.max_read_position == still_open[1] + 1
    assert site.seen(committed, aborted, still_open) == [True, False, True]


async def test_a_snapshot_comes_by_itself(broker: MemoryBroker):
    """E7: soon after a change, without anybody asking; its markers go."""
    async with snapshot_site(broker, SnapshotLimits(interval_ms=1)) as site:
        aborted = await site.aborted()
        await until(lambda: site.table().ends and site.markers_left() == [])
        assert site.seen(aborted) == [False]


async def test_many_askers_share_a_probe(site: SnapshotSite, line: SnapshotLine):
    """E7: those that come during a probe share the next one."""
    await site.aborted()
    taken = await asyncio.gather(*(line.take(ORDERS) for _ in range(50)))
    assert len(set(taken)) == 1
    value = site.worker.metrics.registry.get_sample_value
    labels = {"cluster": "test", "partition": str(SERVING)}
    assert value("stilltide_snapshot_answers_total", labels) == 50
    assert site.probes() <= 2


async def test_a_partition_that_is_not_there_is_refused(site: SnapshotSite, line: SnapshotLine):
    """Neither an unknown topic nor a partition beyond the last one gets a snapshot."""
    for data in (TopicPartition("nothing", 0), TopicPartition(ORDERS.topic, 7)):
        with pytest.raises(RefusedError, match="no snapshot was taken"):
            await line.take(data)
    assert site.table().ends == {}
