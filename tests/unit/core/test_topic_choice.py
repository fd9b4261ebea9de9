"""D8: which topics names and patterns choose."""

import pytest

from stilltide.pipeline.core.group_choice import TopicPatterns, fits, is_pattern

EXISTING = [
    "__consumer_offsets",
    "orders",
    "orders-eu",
    "orders-eu-billing-DLQ",
    "orders-us",
    "payments",
    "stilltide.txn-markers",
]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("orders", False), ("orders-*", True), ("order?", True), ("[op]*", True), ("a.b_c-d", False)],
)
def test_a_name_with_a_shell_character_is_a_pattern(name: str, *, expected: bool):
    """No legal topic name has one of these characters."""
    assert is_pattern(name) is expected


def test_a_topic_fits_its_name_or_a_pattern():
    """Upper and lower case differ, as in Kafka."""
    assert fits("orders-eu", ["payments", "orders-*"])
    assert fits("payments", ["payments", "orders-*"])
    assert not fits("Orders-eu", ["orders-*"])


def test_names_are_chosen_whether_they_exist_or_not():
    """A name that does not exist is an error of reading, not of choosing."""
    assert TopicPatterns(["absent", "orders-*"]).chosen(EXISTING) == [
        "absent",
        "orders-eu",
        "orders-us",
    ]


def test_a_pattern_takes_no_topic_of_stilltide_or_kafka():
    """Their records are not messages."""
    taken = TopicPatterns(["*"]).chosen(EXISTING)
    assert taken == ["orders", "orders-eu", "orders-us", "payments"]


def test_a_pattern_takes_no_dead_letters_unless_it_says_so():
    """Dead letters would be delivered to the group that could not process them."""
    assert "orders-eu-billing-DLQ" not in TopicPatterns(["orders-*"]).chosen(EXISTING)
    assert TopicPatterns(["*-DLQ"]).chosen(EXISTING) == ["orders-eu-billing-DLQ"]


def test_a_topic_that_is_left_out_is_not_taken():
    """The subscription's own dead-letter topic may have any name."""
    assert TopicPatterns(["orders-*"], ["orders-us"]).chosen(EXISTING) == ["orders-eu"]
