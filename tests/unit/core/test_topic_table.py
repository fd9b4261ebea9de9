"""C13: what a client knows of topics, and when it looks again."""

from stilltide.pipeline.core.topic_table import (
    KnownTopic,
    TopicGrown,
    TopicTable,
)

OLD, NEW = b"o" * 16, b"n" * 16


def table_of(**topics: KnownTopic) -> TopicTable:
    """A table of these topics, looked at once at 0."""
    table = TopicTable(max_age_ms=1000)
    assert table.described(topics) == []
    table.looked(0)
    return table


def test_a_look_is_due_at_the_age():
    """C13: topics are looked at again at the age, counted from the last look; none, no look."""
    table = table_of(orders=KnownTopic(OLD, 2))
    assert table.deadline_ms == 1000
    table.looked(700)
    assert table.deadline_ms == 1700
    table.looked(100)  # an answer that comes late
    assert table.deadline_ms == 1700
    assert TopicTable(max_age_ms=1000).deadline_ms is None


def test_added_partitions_are_a_change():
    """C13: the change names the counts before and now, once."""
    table = table_of(orders=KnownTopic(OLD, 2), payments=KnownTopic(OLD, 1))
    found = {"orders": KnownTopic(OLD, 5), "payments": KnownTopic(OLD, 1)}
    assert table.changes(found) == [TopicGrown("orders", 2, 5)]
    assert table.get("orders") == (OLD, 2), "nothing was taken yet"
    assert table.described(found) == [TopicGrown("orders", 2, 5)]
    assert table.get("orders") == (OLD, 5)
    assert table.described(found) == []


def test_a_missing_topic_stays_as_it_was():
    """C13: a deleted topic is a change only once another one has its name."""
    table = table_of(orders=KnownTopic(OLD, 5))
    assert table.described({}) == []
    assert table.get("orders") == (OLD, 5)
    table.forget(["orders"])
    assert (table.get("orders"), list(table.names)) == (None, [])
