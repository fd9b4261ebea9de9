"""`TopicAdmin`: promises of connectors.ports.connector, on every connector."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from stilltide.connectors.errors import FatalError, MissingTopicError, RetriableError
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import TopicAdmin, TopicConnector
from stilltide.schemas.topics import Broker, PartitionReplicas, compacts
from stilltide.schemas.values import TopicPartition
from tests.contract.rig import Rig, create, write

WAIT_S = 240.0


@pytest.fixture
async def topics(rig: Rig) -> AsyncIterator[TopicAdmin]:
    """An admin of the connector under test."""
    made = cast("TopicConnector", rig.connector).topic_admin()
    yield made
    await made.close()
    await made.close()


@pytest.fixture
async def admin(rig: Rig) -> AsyncIterator[LogAdmin]:
    """Shows what the brokers report."""
    made = rig.connector.admin()
    yield made
    await made.close()


async def test_brokers_have_ids(topics: TopicAdmin):
    """The one broker of the cluster, which has no rack."""
    assert await topics.brokers() == [Broker(1, None)]


async def test_placements_are_by_partition(rig: Rig, topics: TopicAdmin, topic_name: str):
    """Each partition has its replicas and those in sync; a missing topic is left out."""
    await create(rig, topic_name, 3)
    found = await topics.placements([topic_name, f"{topic_name}-absent"])
    assert found == {topic_name: (PartitionReplicas((1,), (1,)),) * 3}
    assert await topics.placements([]) == {}


async def test_sizes_are_by_partition(rig: Rig, topics: TopicAdmin, topic_name: str):
    """Of topics that exist; a partition that was written to is larger than an empty one."""
    await create(rig, topic_name, 2)
    written = TopicPartition(topic_name, 1)
    await write(rig, written, bytes(5001))
    sizes = await topics.sizes([topic_name, f"{topic_name}-absent"])
    assert sizes.keys() == {TopicPartition(topic_name, 0), written}
    assert sizes[written] > 5000 > sizes[TopicPartition(topic_name, 0)] == 0
    assert await topics.sizes([]) == {}


async def test_a_config_is_altered_and_others_stay(
    rig: Rig, topics: TopicAdmin, admin: LogAdmin, topic_name: str
):
    """Once it returns, the brokers report the new values, in each topic its own."""
    other = f"{topic_name}-other"
    await create(rig, topic_name, cleanup_policy="compact", segment_ms="1000")
    await create(rig, other)
    await topics.alter_configs({})
    lag = {"max.compaction.lag.ms": "1200000", "segment.ms": "600000"}
    await topics.alter_configs({topic_name: lag, other: {"cleanup.policy": "delete,compact"}})
    found = await admin.topic_configs([topic_name, other])
    assert {name: found[topic_name][name] for name in lag} == lag
    assert found[topic_name]["cleanup.policy"] == "compact"
    assert await admin.topic_overrides([topic_name, other]) == {
        topic_name: {"cleanup.policy": "compact", **lag},
        other: {"cleanup.policy": "delete,compact"},
    }


async def test_a_config_that_is_taken_away_has_the_default_of_the_cluster(
    rig: Rig, topics: TopicAdmin, admin: LogAdmin, topic_name: str
):
    """None takes the topic's own value away, also twice; one call may set other configs, too."""
    await create(
        rig,
        topic_name,
        cleanup_policy="compact",
        retention_ms="1000",
        min_compaction_lag_ms="5",
    )
    gone = {"cleanup.policy": None, "min.compaction.lag.ms": None}
    for _ in range(2):
        await topics.alter_configs({topic_name: {**gone, "retention.ms": "2000"}})
        assert await admin.topic_overrides([topic_name]) == {topic_name: {"retention.ms": "2000"}}
    found = (await admin.topic_configs([topic_name]))[topic_name]
    assert (found["cleanup.policy"], found["min.compaction.lag.ms"]) == ("delete", "0")


async def test_a_missing_topic_is_refused(topics: TopicAdmin, admin: LogAdmin, topic_name: str):
    """The error names the topic, and no topic is created."""
    with pytest.raises(FatalError, match=topic_name):
        await topics.alter_configs({topic_name: {"segment.ms": "1000"}})
    assert await admin.describe_topics([topic_name]) == {}


async def test_topics_are_deleted(rig: Rig, topics: TopicAdmin, admin: LogAdmin, topic_name: str):
    """Once it returns, nobody shows them; a topic that does not exist is named."""
    other = f"{topic_name}-other"
    await create(rig, topic_name)
    await create(rig, other)
    await topics.delete_topics([])
    await topics.delete_topics([topic_name])
    assert set(await topics.placements([topic_name, other])) == {other}
    assert topic_name not in await admin.list_topics()
    with pytest.raises(MissingTopicError, match=topic_name):
        await topics.delete_topics([topic_name])


async def test_a_cluster_that_is_away_is_retriable(rig: Rig):
    """Every call fails within the time-out and names the address."""
    topics = cast("TopicConnector", rig.unreachable()).topic_admin()
    for ask in (
        topics.brokers,
        lambda: topics.placements(["t"]),
        lambda: topics.alter_configs({"t": {"segment.ms": "1000"}}),
        lambda: topics.delete_topics(["t"]),
    ):
        with pytest.raises(RetriableError, match=rig.address):
            async with asyncio.timeout(WAIT_S):
                await ask()
    await topics.close()


@pytest.mark.parametrize("policy", ["compact", "compact,delete", "delete,compact"])
async def test_a_policy_is_told_when_it_is_altered(
    rig: Rig, topics: TopicAdmin, admin: LogAdmin, topic_name: str, policy: str
):
    """C18: a topic deletes unless it says otherwise; each answer is of the policy as it is now."""
    await create(rig, topic_name)
    for value, expected in ((None, False), (policy, True), ("delete", False)):
        await topics.alter_configs({topic_name: {"cleanup.policy": value}})
        found = await admin.topic_configs([topic_name])
        assert compacts(found[topic_name]) is expected
