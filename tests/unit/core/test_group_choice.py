"""D8, I15: which topics and which groups names and patterns choose."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.group_choice import (
    GroupChoice,
    GroupSetting,
    TopicPatterns,
    fits,
    is_pattern,
)

EVERY = GroupSetting("*", "*", enabled=True)
BILLING = GroupSetting("orders-*", "billing*", enabled=True)
NO_TEST = GroupSetting("orders-*", "billing-test*", enabled=False)
NAMED = GroupSetting("orders-eu", "billing-test1", enabled=True)


@pytest.mark.parametrize(
    ("topic", "group", "setting"),
    [
        ("orders-eu", "billing1", BILLING),
        ("orders-eu", "billing-test2", NO_TEST),
        ("orders-eu", "billing-test1", NAMED),
        ("payments", "billing1", EVERY),
        ("stilltide.txn-log", "billing1", None),
        ("__consumer_offsets", "billing1", None),
        ("orders-eu", "stilltide.workers", None),
    ],
)
def test_names_win_over_patterns_and_long_patterns_over_short_ones(
    topic: str, group: str, setting: GroupSetting | None
):
    """Nothing of Stilltide or of Kafka itself is taken by a pattern."""
    choice = GroupChoice([EVERY, NO_TEST, BILLING, NAMED])
    assert choice.setting_of(topic, group) == setting


def test_of_equal_patterns_one_that_disables_wins():
    """A group that should not move does not."""
    on, off = GroupSetting("a*", "b", enabled=True), GroupSetting("a", "b*", enabled=False)
    assert GroupChoice([on, off]).setting_of("a", "b") == off


def test_a_group_whose_name_is_a_pattern_is_taken_by_it():
    """Kafka allows any name for a group."""
    one = GroupSetting("orders", "[x]", enabled=True)
    assert GroupChoice([one]).setting_of("orders", "[x]") == one
    assert GroupChoice([one]).setting_of("orders", "x") == one


def test_patterns_take_groups_of_the_topics_that_these_have_committed():
    """A group by name is no pattern's, nor one that is disabled; known groups need no commit."""
    choice = GroupChoice([BILLING, NO_TEST, NAMED])
    committed = {
        "billing1": {"orders-eu", "payments"},
        "billing-test1": {"orders-eu"},
        "billing-test2": {"orders-eu"},
        "audit": {"orders-eu"},
    }
    assert choice.has_patterns
    assert [group for group in committed if choice.may_take(group)] == [
        *("billing1", "billing-test1", "billing-test2")
    ]
    assert choice.taken(committed) == {BILLING: [("orders-eu", "billing1")]}
    assert choice.topics() == {"orders-eu"}
    assert choice.groups("orders-eu", {"billing1", "billing-test2", "from-afar"}) == {
        *("billing-test1", "billing1", "from-afar")
    }


def test_a_pattern_that_disables_asks_for_no_list():
    """Nothing can be taken up."""
    assert not GroupChoice([NO_TEST, NAMED]).has_patterns


NAMES = st.sampled_from(["a", "ab", "abc", "b", "bc"])
PATTERNS = st.sampled_from(["*", "a*", "*b", "ab*", "?", "[ab]*", "a", "ab"])
SETTINGS = st.lists(
    st.builds(GroupSetting, PATTERNS, PATTERNS, st.booleans()),
    unique_by=lambda one: (one.topic, one.group),
)


@given(SETTINGS, NAMES, NAMES, st.randoms(use_true_random=False))
def test_the_order_of_settings_means_nothing(
    settings: list[GroupSetting], topic: str, group: str, random: Random
):
    """Each cluster and each restart chooses the same."""
    shuffled = random.sample(settings, len(settings))
    found = GroupChoice(settings).setting_of(topic, group)
    assert found == GroupChoice(shuffled).setting_of(topic, group)
    assert found is None or found.fits(topic, group)


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
