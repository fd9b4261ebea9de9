"""The view of what links have written on a cluster (H1, H3)."""

import pytest

from stilltide.connectors.clock import SystemClock
from stilltide.connectors.errors import RetriableError
from stilltide.pipeline.core.replicas import AUTOMATIC
from stilltide.pipeline.drivers.links import positions
from stilltide.pipeline.drivers.links.positions import PositionsView
from stilltide.pipeline.drivers.links.sides import opened
from stilltide.schemas.replication.positions import Beat, BeatKey, encode_beat, encode_beat_key
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import ClusterName, TopicPartition
from tests.support.links.memory_link import SYSTEM_PARTITIONS, MemoryCluster

PLACE = TopicPartition(REPLICATION_POSITIONS, 1)
KEY = BeatKey(ClusterName("b"), ClusterName("a"), PLACE.partition)


async def test_a_view_that_does_not_meet_the_ends_reads_everything_again(
    monkeypatch: pytest.MonkeyPatch,
):
    """Not for ever, and not without a word: nothing else would tell that it has stopped."""
    monkeypatch.setattr(positions, "STUCK_S", 0.05)
    a, clock = MemoryCluster("a"), SystemClock()
    admin = a.connector.admin()
    side = await opened(
        a.name, a.connector, admin, partition_count=SYSTEM_PARTITIONS, replicas=AUTOMATIC
    )
    view = PositionsView(side, "view", clock)
    link, beat = a.broker.transactions, encode_beat(Beat(clock.now_ms(), None))
    link.fence("link")
    link.append_open("link", PLACE, encode_beat_key(KEY), beat, None)
    with pytest.raises(RetriableError, match="which links run"):
        await view.catch_up()
    link.end_open("link", committed=True)
    await view.catch_up()
    age_ms = view.liveness.age_ms(ClusterName("b"), clock.now_ms())
    assert age_ms is not None
    await view.close()
