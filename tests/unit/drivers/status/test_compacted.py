"""C18: what the coordinators of a cluster tell of topics that compact, as one list."""

from stilltide.pipeline.core.status.values import CompactedStatus
from stilltide.pipeline.drivers.status.transactions import compacted_topics
from stilltide.schemas.coordinator.transactions import CompactedTopic
from tests.support.schemas.wire import STATS


def test_the_first_worker_that_has_seen_a_topic_compact_tells_since_when():
    """Each worker tells what its own snapshot writers know; a topic is listed once, by name."""
    told = [
        STATS._replace(compacted=(CompactedTopic("b", 20), CompactedTopic("a", 5))),
        STATS._replace(compacted=(CompactedTopic("b", 10),)),
        STATS,
    ]
    assert compacted_topics(told) == (CompactedStatus("a", 5), CompactedStatus("b", 10))
    assert compacted_topics([]) == ()
