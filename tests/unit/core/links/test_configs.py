"""Which configs of topics a link alters on its target (H8)."""

from collections.abc import Mapping
from typing import Any

import pytest

from stilltide.pipeline.core.links.configs import (
    FOLLOWED,
    LIMIT_BYTES_MIN,
    AlterConfigs,
    Authority,
    ConfigEffect,
    ConfigFollower,
    LeftAlone,
    ReadSourceEnds,
    ReportDiffering,
    TopicConfigs,
    TopicPair,
    alike,
    authority,
    carried,
)
from stilltide.pipeline.errors import ConfigError
from stilltide.schemas.values import ClusterName, EndOffset, TopicPartition

DATA = TopicPartition("orders", 0)
IDS = (b"source", b"target")
DEFAULTS = {
    "cleanup.policy": "delete",
    "delete.retention.ms": "86400000",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "min.compaction.lag.ms": "0",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
A, B, C = map(ClusterName, "abc")


def configs(own: Mapping[str, str]) -> TopicConfigs:
    """The configs of a topic on a cluster with Kafka's defaults."""
    return TopicConfigs(own, {**DEFAULTS, **own})


class Topic:
    """One topic on both sides, and the link's machine; keyword names have `_` for a dot."""

    def __init__(self, may: Authority = Authority.CHANGES, *left_alone: str) -> None:
        self.machine = ConfigFollower(LeftAlone.parsed(left_alone))
        self.may = may
        self.source: dict[str, str] = {}
        self.target: dict[str, str] = {}
        self.position = 0
        self.ids: tuple[bytes, bytes] = IDS

    def on_source(self, **values: Any) -> None:
        """Sets configs there; None unsets."""
        self._set(self.source, values)

    def on_target(self, **values: Any) -> None:
        """Sets configs there; None unsets."""
        self._set(self.target, values)

    def look(self) -> list[ConfigEffect]:
        """A look of the link, whose alterations succeed."""
        effects = self.machine.seen(
            TopicPair(
                "orders",
                self.ids,
                configs(dict(self.source)),
                configs(dict(self.target)),
                self.may,
                {DATA: self.position},
            )
        )
        for effect in effects:
            if isinstance(effect, AlterConfigs):
                self._set(self.target, effect.changes)
        return effects

    @staticmethod
    def _set(configs: dict[str, str], values: Mapping[str, str | None]) -> None:
        for name, value in values.items():
            config = name.replace("_", ".")
            if value is None:
                configs.pop(config, None)
            else:
                configs[config] = value


def altered(**values: str | None) -> list[AlterConfigs]:
    """The effect that alters these configs, alone."""
    return [AlterConfigs("orders", {name.replace("_", "."): it for name, it in values.items()})]


def test_a_change_on_the_source_is_carried():
    """H8: a value that is set, another value, and none again; once each."""
    topic = Topic()
    assert topic.look() == []
    for value in ("1000", "2000", None):
        topic.on_source(retention_ms=value)
        assert topic.look() == altered(retention_ms=value)
        assert topic.look() == []


@pytest.mark.parametrize("config", ["min_insync_replicas", "message_timestamp_type", "segment_ms"])
def test_other_configs_are_the_targets_own(config: str):
    """H8: they do not change which records readers find, or would lose timestamps (H1)."""
    topic = Topic(Authority.ALL)
    topic.look()
    topic.on_source(**{config: "2"})
    assert topic.look() == []


def test_what_differs_at_the_first_look_is_left_alone_and_told_once():
    """H8: nobody knows which side is right; what is changed later on the source stays, too."""
    topic = Topic()
    topic.on_source(retention_ms="1", retention_bytes="5")
    topic.on_target(retention_ms="2", retention_bytes="5")
    assert topic.look() == [ReportDiffering("orders", {"retention.ms": ("1", "2")})]
    assert topic.look() == []
    topic.on_source(retention_ms="3", retention_bytes="6")
    assert topic.look() == [
        ReportDiffering("orders", {"retention.ms": ("3", "2")}),
        *altered(retention_bytes="6"),
    ]


def test_what_is_made_equal_by_hand_is_followed_again():
    """H8: once both sides have the same value, nothing differs and later changes are carried."""
    topic = Topic()
    topic.on_source(retention_ms="1")
    topic.look()
    topic.on_target(retention_ms="1")
    assert topic.look() == [ReportDiffering("orders", {})]
    topic.on_source(retention_ms="2")
    assert topic.look() == altered(retention_ms="2")


def test_a_value_set_by_hand_on_the_target_stays():
    """H8: without a leading cluster, also when the source changes later."""
    topic = Topic()
    topic.look()
    topic.on_target(retention_ms="7")
    assert topic.look() == [ReportDiffering("orders", {"retention.ms": (None, "7")})]
    topic.on_source(retention_ms="8")
    assert topic.look() == [ReportDiffering("orders", {"retention.ms": ("8", "7")})]


def test_the_leading_cluster_is_followed_whatever_the_target_has():
    """H8: from the first look on, and again after a change by hand."""
    topic = Topic(Authority.ALL)
    topic.on_source(retention_ms="1")
    topic.on_target(retention_ms="2", retention_bytes="3")
    assert topic.look() == altered(retention_bytes=None, retention_ms="1")
    topic.on_target(retention_ms="9")
    assert topic.look() == altered(retention_ms="1")
    assert topic.look() == []


def test_configs_in_the_list_are_left_alone_and_not_told():
    """H8: of all topics, or of topics that a pattern names."""
    topic = Topic(Authority.ALL, "retention.ms", "ord*:retention.bytes", "other:cleanup.policy")
    topic.on_source(retention_ms="1", retention_bytes="2", delete_retention_ms="3")
    assert topic.look() == altered(delete_retention_ms="3")


@pytest.mark.parametrize("entry", ["min.insync.replicas", ":retention.ms", "orders:", "orders"])
def test_an_entry_of_the_list_names_a_followed_config(entry: str):
    """The error shows the entry, and what links follow."""
    with pytest.raises(ConfigError, match=entry) as caught:
        LeftAlone.parsed(["retention.ms", entry])
    assert all(config in str(caught.value) for config in FOLLOWED)


def test_the_same_value_as_a_default_and_by_name_is_in_step():
    """H8: a topic that names Kafka's default does not differ from one that names nothing."""
    topic = Topic()
    topic.on_source(cleanup_policy="delete")
    topic.on_target(retention_ms="604800000")
    assert topic.look() == []
    topic.on_source(retention_ms="5")
    assert topic.look() == altered(retention_ms="5")


def test_compaction_waits_until_the_link_has_copied_what_was_there():
    """H1, H8: a compacted topic refuses records without key, which the source may still hold.

    Retention, which was changed with the policy, waits, too: with the old policy a shorter
    retention would delete records that the source keeps.
    """
    topic = Topic()
    topic.on_source(retention_ms="-1")
    topic.on_target(retention_ms="-1")
    topic.look()
    topic.on_source(cleanup_policy="compact", retention_ms=None)
    values = {"cleanup.policy": ("compact", None), "retention.ms": (None, "-1")}
    waits = ReportDiffering("orders", values, waiting=True)
    assert topic.look() == [waits, ReadSourceEnds("orders")]
    topic.machine.ends_read("orders", {DATA: EndOffset(7)})
    topic.position = 6
    assert topic.look() == []
    topic.position = 7
    assert topic.look() == [
        ReportDiffering("orders", {}),
        *altered(cleanup_policy="compact", retention_ms=None),
    ]


def test_another_change_waits_for_what_was_there_then():
    """H8: records without key may have come between two changes of the policy."""
    topic = Topic()
    topic.look()
    topic.on_source(cleanup_policy="compact")
    topic.look()
    topic.machine.ends_read("orders", {DATA: EndOffset(0)})
    topic.on_source(cleanup_policy="delete")
    topic.look()
    topic.on_source(cleanup_policy="compact")
    assert ReadSourceEnds("orders") in topic.look()


def test_retention_is_followed_only_with_the_same_policy():
    """H8: on a topic that is compacted, retention means nothing; on the other it deletes."""
    topic = Topic(Authority.ALL, "cleanup.policy")
    topic.on_source(cleanup_policy="compact", retention_ms="1")
    assert topic.look() == [ReportDiffering("orders", {"retention.ms": ("1", None)})]


def test_a_lower_limit_of_sizes_waits_and_a_higher_one_does_not():
    """H1, H8: a lower one would stop the link at a larger record that it has not copied yet.

    A higher one goes before changes that wait: the link may need it to copy what they wait for.
    """
    topic = Topic()
    topic.look()
    topic.on_source(cleanup_policy="compact", max_message_bytes="5000000")
    assert topic.look()[1:] == [ReadSourceEnds("orders"), *altered(max_message_bytes="5000000")]
    topic.on_source(cleanup_policy=None, max_message_bytes="2000000")
    assert topic.look()[1:] == [ReadSourceEnds("orders")]
    topic.machine.ends_read("orders", {DATA: EndOffset(7)})
    assert topic.look() == []
    topic.position = 7
    assert altered(max_message_bytes="2000000")[0] in topic.look()


def test_a_lower_limit_of_sizes_on_the_target_is_raised_at_the_first_look():
    """H8: else a link that was away while the source raised its limit stops, and for ever."""
    topic = Topic()
    topic.on_source(max_message_bytes="5000000")
    topic.on_target(max_message_bytes="2000000")
    assert topic.look() == altered(max_message_bytes="5000000")
    topic.on_target(max_message_bytes="9000000")
    values = {"max.message.bytes": ("5000000", "9000000")}
    assert topic.look() == [ReportDiffering("orders", values)]


def test_a_limit_leaves_room_for_the_batches_of_a_link():
    """H8: brokers hold whole batches to it, and those of a link are larger than a producer's."""
    assert carried("max.message.bytes", "1000") == str(LIMIT_BYTES_MIN)
    assert carried("retention.ms", "1000") == "1000"
    topic = Topic()
    topic.look()
    topic.on_source(max_message_bytes="1000")
    assert topic.look() == [], "the default of the target is as much"


def test_an_attempt_that_failed_is_repeated():
    """H8: also if it succeeded unnoticed, and the source has changed since."""
    topic = Topic()
    topic.look()
    topic.on_source(retention_ms="1")
    assert topic.look() == altered(retention_ms="1")
    topic.on_target(retention_ms=None)
    assert topic.look() == altered(retention_ms="1")
    topic.on_source(retention_ms="2")
    assert topic.look() == altered(retention_ms="2")


def test_a_topic_that_the_link_created_is_followed_from_then_on():
    """H8: also if the source changes before the link looks for the first time."""
    topic = Topic()
    topic.machine.created("orders", {"retention.ms": "1"})
    topic.on_target(retention_ms="1", min_insync_replicas="1")
    topic.on_source(retention_ms="2", retention_bytes="3")
    assert topic.look() == altered(retention_bytes="3", retention_ms="2")


def test_a_topic_that_was_created_again_is_looked_at_for_the_first_time():
    """H6, H8: what was in step with another topic says nothing."""
    topic = Topic()
    topic.look()
    topic.ids = (b"source", b"another")
    topic.on_source(retention_ms="1")
    assert topic.look() == [ReportDiffering("orders", {"retention.ms": ("1", None)})]
    topic.machine.keep([])
    assert topic.look() == [ReportDiffering("orders", {"retention.ms": ("1", None)})]


def test_a_link_without_authority_alters_nothing():
    """H8: it says what differs."""
    topic = Topic(Authority.NONE)
    topic.look()
    topic.on_source(retention_ms="1", max_message_bytes="5000000")
    (report,) = topic.look()
    assert isinstance(report, ReportDiffering)
    assert report.configs.keys() == {"retention.ms", "max.message.bytes"}


def test_a_link_from_another_cluster_than_the_leading_one_says_nothing():
    """H8: what differs is about to be altered by another link, which says so."""
    topic = Topic(Authority.OTHER)
    topic.on_source(retention_ms="1")
    assert topic.look() == []


@pytest.mark.parametrize(
    ("lead", "into_source", "into_target", "may"),
    [
        ("", [], [], Authority.CHANGES),
        ("", [], [A], Authority.CHANGES),
        ("", [B], [A], Authority.NONE),
        ("", [C], [A], Authority.NONE),
        ("", [], [A, C], Authority.NONE),
        ("a", [B, C], [A, C], Authority.ALL),
        ("b", [], [], Authority.OTHER),
        ("c", [], [], Authority.OTHER),
    ],
)
def test_one_cluster_leads(
    lead: str, into_source: list[ClusterName], into_target: list[ClusterName], may: Authority
):
    """H8: the named one, else the source of a topic's only link; of a link from a to b."""
    assert authority(lead, A, into_source, into_target) is may


@pytest.mark.parametrize(
    ("source", "target", "same"),
    [
        ({}, {}, True),
        ({"retention.ms": "1"}, {"retention.ms": "1", "min.insync.replicas": "2"}, True),
        ({"cleanup.policy": "compact,delete"}, {"cleanup.policy": "delete, compact"}, True),
        ({"max.message.bytes": "10"}, {"max.message.bytes": str(LIMIT_BYTES_MIN)}, True),
        ({"retention.ms": "1"}, {}, False),
        ({"retention.ms": "1"}, {"retention.ms": "2"}, False),
    ],
)
def test_topics_that_are_alike(source: dict[str, str], target: dict[str, str], same: bool):  # noqa: FBT001
    """H8: of them nothing but their own values needs to be read."""
    assert alike(source, target) is same
