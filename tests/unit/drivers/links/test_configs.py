"""Configs of topics follow those of the source, between memory brokers (H8)."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.connector import MemoryTopicAdmin
from stilltide.pipeline.core.links.configs import LIMIT_BYTES_MIN, LeftAlone
from stilltide.pipeline.drivers.links.configs import ConfigOptions
from stilltide.pipeline.drivers.links.link import LinkRunOptions
from stilltide.pipeline.drivers.links.share import LinkShare
from stilltide.schemas.values import TopicPartition
from tests.support.links.memory_link import OPTIONS, MemoryCluster, copying, linked, until


def following(
    lead: str = "", *left_alone: str, options: LinkRunOptions = OPTIONS
) -> LinkRunOptions:
    """Options of a link that looks at configs again and again."""
    configs = ConfigOptions(lead, LeftAlone.parsed(left_alone), interval_s=0.01)
    return replace(options, configs=configs)


def own(cluster: MemoryCluster, topic: str = "orders") -> dict[str, str]:
    """The configs that are set on a topic; none while it does not exist."""
    found = cluster.broker.topics.get(topic)
    return {} if found is None else found.set_configs


def change(cluster: MemoryCluster, topic: str = "orders", **configs: str | None) -> None:
    """Sets configs of a topic; `_` means a dot, None unsets."""
    changes = {name.replace("_", "."): value for name, value in configs.items()}
    cluster.broker.topics[topic].alter(changes)


@pytest.fixture
def a() -> MemoryCluster:
    """The source, as a rule."""
    return MemoryCluster("a")


@pytest.fixture
def b() -> MemoryCluster:
    """The target, as a rule; without topic."""
    return MemoryCluster("b", orders=0)


async def test_changes_are_followed_while_a_link_runs(a: MemoryCluster, b: MemoryCluster):
    """H8: set, set again and unset; those of the target's cluster stay."""
    async with linked(a, b, following()) as link:
        await until(lambda: "orders" in b.broker.topics)
        change(b, min_insync_replicas="1")
        change(a, retention_ms="1", min_insync_replicas="2", message_timestamp_type="LogAppendTime")
        await until(lambda: own(b) == {"retention.ms": "1", "min.insync.replicas": "1"})
        change(a, retention_ms="2", retention_bytes="7")
        await until(lambda: own(b).get("retention.bytes") == "7")
        change(a, retention_ms=None)
        await until(lambda: "retention.ms" not in own(b))
        await until(lambda: link.progress.configs_of("orders").carried == 4)


async def test_a_topic_that_comes_later_is_followed_too(a: MemoryCluster, b: MemoryCluster):
    """H8: from its creation by the link on."""
    async with linked(a, b, following()):
        a.create("later", retention_ms="1")
        await until(lambda: "later" in b.broker.topics)
        a.write(b"1", data=TopicPartition("later", 0))
        await until(lambda: b.values(TopicPartition("later", 0)) == [b"1"])
        change(a, "later", retention_ms="2")
        await until(lambda: own(b, "later")["retention.ms"] == "2")


async def test_a_policy_waits_for_the_records_that_it_would_refuse(
    a: MemoryCluster, b: MemoryCluster
):
    """H1, H8: a record without key is copied before its topic is compacted on the target."""
    slow = replace(OPTIONS, throttle_bytes_per_s=40)
    async with linked(a, b, following(options=slow)) as link:
        await until(lambda: "orders" in b.broker.topics)
        a.write(*[b"%05d" % number for number in range(10)])
        a.broker.append(TopicPartition("orders", 0), None, b"without key", None)
        change(a, cleanup_policy="compact")
        await until(lambda: own(b).get("cleanup.policy") == "compact")
        assert b.values()[-1] == b"without key"
        assert link.progress.configs_of("orders").carried == 1
    assert len(b.values()) == 11


async def test_a_larger_record_is_copied_when_the_source_has_raised_its_limit(
    a: MemoryCluster, b: MemoryCluster
):
    """H8: the link that the target's limit would stop raises it and goes on, without a look."""
    seldom = replace(OPTIONS, configs=ConfigOptions(interval_s=3600))
    async with linked(a, b, seldom):
        change(a, max_message_bytes="2000000")
        a.write(b"x" * (LIMIT_BYTES_MIN + 1))
        await until(lambda: len(b.values()) == 1)
    assert own(b)["max.message.bytes"] == "2000000"


async def test_what_an_operator_set_is_left_alone(a: MemoryCluster, b: MemoryCluster):
    """H8: what differs at the first look; with a leading cluster what the list names."""
    b.create("orders", 1, retention_ms="5")
    change(a, retention_ms="1")
    async with linked(a, b, following()) as link:
        await until(lambda: link.progress.configs_of("orders").differing == 1)
        change(a, retention_bytes="2")
        await until(lambda: own(b).get("retention.bytes") == "2")
    assert own(b)["retention.ms"] == "5"
    async with linked(a, b, following("a", "orders:retention.ms")):
        change(a, retention_bytes="3")
        await until(lambda: own(b)["retention.bytes"] == "3")
    assert own(b)["retention.ms"] == "5"
    async with linked(a, b, following("a")):
        await until(lambda: own(b)["retention.ms"] == "1")


async def test_links_in_both_directions_carry_nothing_unless_a_cluster_leads(
    a: MemoryCluster, b: MemoryCluster
):
    """H8: a change on one side stays there, and both links say that the sides differ."""
    both = copying(merge=True)
    a.write(b"1")
    async with (
        linked(a, b, following(options=both)) as there,
        linked(b, a, following(options=both)) as back,
    ):
        await until(lambda: len(b.values()) == 1)
        b.write(b"2")
        await until(lambda: len(a.values()) == 2)
        change(b, retention_ms="1")
        links = there, back
        await until(lambda: all(it.progress.configs_of("orders").differing == 1 for it in links))
        assert (own(a).get("retention.ms"), own(b)["retention.ms"]) == (None, "1")
    async with (
        linked(a, b, following("b", options=both)) as there,
        linked(b, a, following("b", options=both)) as back,
    ):
        await until(lambda: own(a).get("retention.ms") == "1")
        change(b, retention_ms="2")
        await until(lambda: own(a)["retention.ms"] == "2")
        assert there.progress.carried == 0


class Refusing(MemoryTopicAdmin):
    """The admin of a cluster whose policy refuses some value."""

    async def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        """Refuses a retention of 1 ms."""
        if any(configs.get("retention.ms") == "1" for configs in changes.values()):
            raise FatalError("retention.ms of 1 is refused", hint="ask for more")
        await super().alter_configs(changes)


async def test_a_refusal_is_told_and_the_link_goes_on(
    a: MemoryCluster, b: MemoryCluster, monkeypatch: pytest.MonkeyPatch
):
    """H8: until the target accepts what is asked for."""
    monkeypatch.setattr(b.connector, "topic_admin", lambda: Refusing(b.broker))
    async with linked(a, b, following()) as link:
        await until(lambda: "orders" in b.broker.topics)
        change(a, retention_ms="1")
        await until(lambda: link.progress.refusals != "")
        assert link.progress.refusals == (
            "; configs are not followed: retention.ms of 1 is refused"
        )
        a.write(b"1")
        await until(lambda: b.values() == [b"1"])
        change(a, retention_ms="2")
        await until(lambda: own(b).get("retention.ms") == "2")
        await until(lambda: link.progress.refusals == "")


async def test_a_created_topic_has_room_for_the_batches_of_a_link(b: MemoryCluster):
    """H8: a lower limit than a link's batches would refuse them."""
    a = MemoryCluster("a", orders=0)
    a.create("orders", 1, max_message_bytes="1000")
    async with linked(a, b):
        await until(lambda: "orders" in b.broker.topics)
    assert own(b)["max.message.bytes"] == str(LIMIT_BYTES_MIN)


async def test_a_process_that_leads_again_carries_no_change_of_the_time_between(
    a: MemoryCluster, b: MemoryCluster
):
    """H8, H12: another process has carried it, and an operator may have set the target back."""
    share = LinkShare((0, 1), assigned=True)
    async with linked(a, b, replace(following(), share=share)) as link:
        await until(lambda: "orders" in b.broker.topics)
        change(a, retention_ms="1")
        await until(lambda: own(b).get("retention.ms") == "1")
        share.assign((1,))
        await until(lambda: not link.progress.configs)
        change(a, retention_ms="2")
        share.assign((0, 1))
        await until(lambda: link.progress.configs_of("orders").differing == 1)
        assert own(b)["retention.ms"] == "1"
        change(a, retention_ms="1")
        await until(lambda: not link.progress.configs_of("orders").differing)
        change(a, retention_ms="3")
        await until(lambda: own(b)["retention.ms"] == "3")


async def test_a_process_that_does_not_lead_shows_no_figures_of_configs(
    a: MemoryCluster, b: MemoryCluster
):
    """H12: what it said when it led is no finding any more."""
    share = LinkShare((0, 1), assigned=True)
    b.create("orders", retention_ms="7")
    async with linked(a, b, replace(following(), share=share)) as link:
        await until(lambda: link.progress.configs_of("orders").differing == 1)
        share.assign((1,))
        await until(lambda: not link.progress.configs)
