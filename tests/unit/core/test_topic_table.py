"""C13: what a client knows of topics, and when it looks again."""

from stilltide.pipeline.core.topic_table import (
    KnownTopic,
    TopicGrown,
    TopicRecreated,
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


def test_a_count_never_falls():
    """C13: fewer partitions of the same id come from a broker whose metadata lag behind."""
    table = table_of(orders=KnownTopic(OLD, 5))
    assert table.described({"orders": KnownTopic(OLD, 2)}) == []
    assert table.get("orders") == (OLD, 5)


def test_a_topic_created_again_is_a_change_with_both_ids():
    """C13, E8: the count is that of the new topic, also if it is lower."""
    table = table_of(orders=KnownTopic(OLD, 5))
    assert table.described({"orders": KnownTopic(NEW, 2)}) == [TopicRecreated("orders", OLD, NEW)]
    assert table.get("orders") == (NEW, 2)


def test_an_answer_that_lags_behind_is_undone_by_the_next():
    """C13: ids have no order, so the last answer counts; the table ends with the topic that is."""
    table = table_of(orders=KnownTopic(NEW, 2))
    assert table.described({"orders": KnownTopic(OLD, 5)}) == [TopicRecreated("orders", NEW, OLD)]
    assert table.described({"orders": KnownTopic(NEW, 2)}) == [TopicRecreated("orders", OLD, NEW)]
    assert table.get("orders") == (NEW, 2)


def test_a_missing_topic_stays_as_it_was():
    """C13: a deleted topic is a change only once another one has its name."""
    table = table_of(orders=KnownTopic(OLD, 5))
    assert table.described({}) == []
    assert table.get("orders") == (OLD, 5)
    table.forget(["orders"])
    assert (table.get("orders"), list(table.names)) == (None, [])
