"""Families of a link: its progress, as counters and lag."""

from prometheus_client import CollectorRegistry

from stilltide.connectors.memory.clock import MemoryClock
from stilltide.pipeline.core.links.progress import CopiedCount, LinkProgress
from stilltide.pipeline.metrics.links import LinkMetrics
from stilltide.schemas.values import EndOffset, TopicPartition

LABELS = {"source": "a", "target": "b", "topic": "orders", "partition": "1"}
DATA = TopicPartition("orders", 1)


def registry() -> CollectorRegistry:
    """Of a link that has copied three records and has two to go."""
    progress = LinkProgress()
    progress.copied(DATA, CopiedCount(3, 300, newest_ms=8500))
    progress.committed(DATA, EndOffset(5))
    progress.ends_seen({DATA: EndOffset(7)})
    progress.lost(DATA, 2)
    configs = progress.configs_of("orders")
    configs.carried, configs.differing, configs.refused = 4, 2, "not allowed"
    made = CollectorRegistry()
    made.register(LinkMetrics("b", lambda: {"a": progress}, MemoryClock(10_000)))
    return made


def test_a_link_tells_what_it_copied_and_what_is_left():
    """Records, bytes, losses, and lag both ways."""
    made = registry()
    found = {
        name: made.get_sample_value(f"stilltide_link_{name}", LABELS)
        for name in (
            "copied_records_total",
            "copied_bytes_total",
            "lost_records_total",
            "lag_records",
            "lag_seconds",
        )
    }
    assert list(found.values()) == [3, 300, 2, 2, 1.5]


def test_a_link_tells_how_configs_follow():
    """H8: what was carried, what differs, and whether a cluster refuses; for each topic."""
    labels = {"source": "a", "target": "b", "topic": "orders"}
    names = "carried_total", "differing", "refused"
    made = registry()
    found = [made.get_sample_value(f"stilltide_link_configs_{name}", labels) for name in names]
    assert found == [4, 2, 1]


def test_no_lag_is_none_however_old_the_last_record_is():
    """An idle link is not late."""
    progress = LinkProgress()
    progress.copied(DATA, CopiedCount(3, 300, newest_ms=1))
    progress.committed(DATA, EndOffset(5))
    progress.ends_seen({DATA: EndOffset(5)})
    assert progress.of(DATA).lag_s(10_000) == 0
