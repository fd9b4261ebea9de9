"""I15: which groups settings of names and patterns choose."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stilltide.pipeline.core.group_choice import GroupChoice, GroupSetting

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
