"""`LogAdmin`: promises of connectors.ports, on every connector."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from stilltide.connectors.errors import FatalError, OffsetOutOfRangeError, RetriableError
from stilltide.connectors.local.jars import PINNED_VERSION, kafka_version
from stilltide.connectors.ports.admin import LogAdmin
from stilltide.schemas.topics import BrokerFigures, Replicas, TopicSpec, system_topics
from stilltide.schemas.values import TopicPartition
from tests.contract.rig import Rig, trim, write
from tests.support.looks import between_looks

POLICY = "cleanup.policy"


@pytest.fixture
async def admin(rig: Rig) -> AsyncIterator[LogAdmin]:
    """An admin of the connector under test."""
    admin = rig.connector.admin()
    yield admin
    await admin.close()


async def test_ensure_topics_creates_what_is_missing(admin: LogAdmin, topic_name: str):
    """Topics are there, with an id of 16 bytes, when it returns; a second call changes nothing."""
    specs = [
        TopicSpec(f"{topic_name}-1", 3, {POLICY: "compact,delete", "retention.ms": "-1"}),
        TopicSpec(f"{topic_name}-2", 1),
    ]
    await admin.ensure_topics(specs)
    names = [spec.name for spec in specs]
    found = await admin.describe_topics([*names, f"{topic_name}-absent"])
    assert {name: topic.partition_count for name, topic in found.items()} == dict(
        zip(names, (3, 1), strict=True)
    )
    assert all(topic.name == name for name, topic in found.items())
    ids = {topic.topic_id for topic in found.values()}
    assert len(ids) == 2
    assert {len(topic_id) for topic_id in ids} == {16}
    await admin.ensure_topics(specs)
    assert await admin.describe_topics(names) == found


async def test_ensure_topics_of_nothing(admin: LogAdmin):
    """No topic is no error."""
    await admin.ensure_topics([])
    assert await admin.describe_topics([]) == {}


async def test_the_system_topics_pass(admin: LogAdmin, topic_name: str):
    """Every spec of stilltide.schemas.topics is one that a broker takes and gives back."""
    specs = [
        replace(spec, name=f"{topic_name}-{spec.name}")
        for spec in system_topics(coordinators=2, partitions=3)
    ]
    await admin.ensure_topics(specs)
    await admin.ensure_topics(specs)
    found = await admin.describe_topics([spec.name for spec in specs])
    assert {it.name: it.partition_count for it in found.values()} == {
        spec.name: spec.partition_count for spec in specs
    }
    assert await admin.topic_overrides([spec.name for spec in specs]) == {
        spec.name: {**spec.configs, **spec.wanted} for spec in specs
    }


async def test_configs_of_topics(admin: LogAdmin, topic_name: str):
    """What was set and what is a default; a missing topic is not in the answer."""
    await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "compact"})])
    found = await admin.topic_configs([topic_name, f"{topic_name}-absent"])
    assert list(found) == [topic_name]
    assert found[topic_name][POLICY] == "compact"
    assert found[topic_name]["max.message.bytes"]
    assert await admin.topic_configs([]) == {}


async def test_several_may_ensure_at_once(rig: Rig, topic_name: str):
    """The second caller finds the topic and verifies it."""
    admins = [rig.connector.admin() for _ in range(4)]
    spec = TopicSpec(topic_name, 2, {POLICY: "compact"})
    await asyncio.gather(*(admin.ensure_topics([spec]) for admin in admins))
    found = [await admin.describe_topics([topic_name]) for admin in admins]
    assert found[0][topic_name].partition_count == 2
    assert all(it == found[0] for it in found)
    for admin in admins:
        await admin.close()


async def test_other_partitions_are_refused(admin: LogAdmin, topic_name: str):
    """The error names the topic and both numbers; the topic stays as it is."""
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    with pytest.raises(FatalError) as caught:
        await admin.ensure_topics([TopicSpec(topic_name, 5)])
    assert all(word in str(caught.value) for word in (topic_name, "2", "5"))
    assert caught.value.hint
    assert (await admin.describe_topics([topic_name]))[topic_name].partition_count == 2


async def test_another_config_is_refused(admin: LogAdmin, topic_name: str):
    """The error names topic, config, what was found and what was wanted."""
    await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "delete"})])
    with pytest.raises(FatalError) as caught:
        await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "compact"})])
    assert all(word in str(caught.value) for word in (topic_name, POLICY, "delete", "compact"))
    assert caught.value.hint


async def test_wanted_configs_are_for_new_topics(admin: LogAdmin, topic_name: str):
    """A topic is created with them; one that exists with other values passes unchanged."""
    lag = {"max.compaction.lag.ms": "1200000"}
    await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "compact"}, wanted=lag)])
    assert await admin.topic_overrides([topic_name]) == {topic_name: {POLICY: "compact", **lag}}
    other = {"max.compaction.lag.ms": "60000", "segment.ms": "60000"}
    await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "compact"}, wanted=other)])
    assert await admin.topic_overrides([topic_name]) == {topic_name: {POLICY: "compact", **lag}}


async def test_the_order_of_policies_and_defaults_do_not_matter(admin: LogAdmin, topic_name: str):
    """`delete,compact` is `compact,delete`; a config left out may be anything."""
    await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "compact,delete"})])
    await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "delete,compact"})])
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    with pytest.raises(FatalError):
        await admin.ensure_topics([TopicSpec(topic_name, 1, {POLICY: "compact"})])


@pytest.mark.parametrize("count", [-1, 0, 1_000_000])
async def test_an_impossible_number_of_partitions_is_refused(
    admin: LogAdmin, topic_name: str, count: int
):
    """A nonsensical spec is `FatalError` and names the topic; nothing is created."""
    with pytest.raises(FatalError, match=topic_name):
        await admin.ensure_topics([TopicSpec(f"{topic_name}-2", 1), TopicSpec(topic_name, count)])
    assert await admin.describe_topics([topic_name, f"{topic_name}-2"]) == {}


async def test_a_topic_wanted_twice_is_refused(admin: LogAdmin, topic_name: str):
    """Two specs of one topic might contradict each other."""
    with pytest.raises(FatalError, match=topic_name):
        await admin.ensure_topics([TopicSpec(topic_name, 1), TopicSpec(topic_name, 1)])


async def test_offsets_of_empty_written_and_trimmed_logs(
    rig: Rig, admin: LogAdmin, log: TopicPartition
):
    """Start and end follow appends and deletions; what does not exist is left out."""
    absent = [TopicPartition(log.topic, 7), TopicPartition(f"{log.topic}-absent", 0)]
    other = TopicPartition(log.topic, 1)
    asked = [log, other, *absent]
    assert await admin.end_offsets(asked) == {log: 0, other: 0}
    assert await admin.start_offsets(asked) == {log: 0, other: 0}
    await write(rig, log, b"a", b"b", b"c")
    await trim(rig, log, 2)
    for committed in (False, True):
        assert await admin.end_offsets(asked, committed=committed) == {log: 3, other: 0}
    assert await admin.start_offsets(asked) == {log: 2, other: 0}
    assert await admin.end_offsets([]) == {}
    assert await admin.start_offsets(asked, since_ms=0) == {log: 2, other: 0}
    assert await admin.start_offsets(asked, since_ms=2**42) == {log: 3, other: 0}


async def test_deleted_records_are_gone_up_to_an_offset(
    rig: Rig, admin: LogAdmin, log: TopicPartition
):
    """The log starts at the offset, also at its end; one below the start changes nothing."""
    other = TopicPartition(log.topic, 1)
    await write(rig, log, b"a", b"b", b"c")
    await write(rig, other, b"d")
    await admin.delete_records({})
    for before, start in ((0, 0), (2, 2), (2, 2), (1, 2), (3, 3)):
        await admin.delete_records({log: before, other: 1})
        assert await admin.start_offsets([log, other]) == {log: start, other: 1}
    assert await admin.end_offsets([log, other]) == {log: 3, other: 1}


async def test_records_beyond_the_end_cannot_be_deleted(
    rig: Rig, admin: LogAdmin, log: TopicPartition
):
    """The error names the partition, and the log stays as it is."""
    await write(rig, log, b"a")
    with pytest.raises(OffsetOutOfRangeError, match=f"{log.topic}/0"):
        await admin.delete_records({log: 2})
    assert await admin.start_offsets([log]) == {log: 0}


@pytest.mark.parametrize(("suffix", "partition"), [("-absent", 0), ("", 7)])
async def test_records_of_a_missing_partition_cannot_be_deleted(
    admin: LogAdmin, log: TopicPartition, suffix: str, partition: int
):
    """Neither an unknown topic nor an unknown partition is passed over."""
    absent = TopicPartition(log.topic + suffix, partition)
    with pytest.raises(FatalError, match=f"{absent.topic}/{partition}"):
        await admin.delete_records({absent: 0})


async def test_records_of_a_compacted_topic_cannot_be_deleted(
    rig: Rig, admin: LogAdmin, topic_name: str
):
    """Without a delete policy a broker refuses; with one beside compaction it does not."""
    both = TopicPartition(f"{topic_name}-both", 0)
    await admin.ensure_topics(
        [
            TopicSpec(topic_name, 1, {POLICY: "compact"}),
            TopicSpec(both.topic, 1, {POLICY: "compact,delete"}),
        ]
    )
    data = TopicPartition(topic_name, 0)
    for one in (data, both):
        await write(rig, one, b"a")
    await admin.delete_records({both: 1})
    with pytest.raises(FatalError, match=topic_name):
        await admin.delete_records({data: 1})
    assert await admin.start_offsets([data, both]) == {data: 0, both: 1}


async def test_a_topic_shows_after_it_was_asked_for_in_vain(admin: LogAdmin, topic_name: str):
    """An answer that something is missing is not remembered."""
    data = TopicPartition(topic_name, 0)
    assert await admin.end_offsets([data]) == {}
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    assert await admin.end_offsets([data]) == {data: 0}


async def test_a_broker_away_is_retriable_in_bounded_time(rig: Rig):
    """Every question fails within the time-out and names the address."""
    admin = rig.unreachable().admin()
    data = TopicPartition("t", 0)
    for ask in (
        lambda: admin.ensure_topics([TopicSpec("t", 1)]),
        lambda: admin.describe_topics(["t"]),
        lambda: admin.topic_configs(["t"]),
        lambda: admin.end_offsets([data]),
        lambda: admin.start_offsets([data]),
        lambda: admin.delete_records({data: 0}),
        admin.broker_figures,
    ):
        with pytest.raises(RetriableError, match=rig.address):
            async with asyncio.timeout(240):
                await ask()
    await admin.close()
    await admin.close()


async def test_topics_are_listed_with_their_own_configs(admin: LogAdmin, topic_name: str):
    """Those of Kafka itself are left out, and configs at their default."""
    await admin.ensure_topics([TopicSpec(topic_name, 1, {"retention.ms": "123000"})])
    names = await admin.list_topics()
    assert topic_name in names
    assert names == sorted(names)
    assert not [name for name in names if name.startswith("__")]
    absent = f"{topic_name}-absent"
    assert await admin.topic_overrides([topic_name, absent]) == {
        topic_name: {"retention.ms": "123000"}
    }
    assert await admin.topic_overrides([]) == {}


async def test_partitions_are_added_and_never_taken_away(admin: LogAdmin, topic_name: str):
    """As many as there are, or fewer, is no error."""
    await admin.ensure_topics([TopicSpec(topic_name, 2)])
    for count in (3, 3, 1):
        await admin.add_partitions(topic_name, count)
    added = TopicPartition(topic_name, 2)
    async with asyncio.timeout(240):
        while True:
            if await admin.end_offsets([added]) == {added: 0}:
                break
            await between_looks()
    assert (await admin.describe_topics([topic_name]))[topic_name].partition_count == 3
    with pytest.raises(FatalError):
        await admin.add_partitions(f"{topic_name}-absent", 2)


async def test_a_cluster_has_an_id(admin: LogAdmin):
    """The same each time."""
    assert await admin.cluster_id()
    assert await admin.cluster_id() == await admin.cluster_id()


async def test_brokers_and_their_default_replicas_are_known(admin: LogAdmin):
    """The figures of a cluster of one broker, whose default is Kafka's own."""
    figures = await admin.broker_figures()
    told = (0, 1) if (kafka_version() or PINNED_VERSION).startswith("3.") else (1,)
    assert figures.registered in told  # Kafka before 4.0 does not tell
    assert figures == BrokerFigures(1, default_replicas=1, registered=figures.registered)
    assert await admin.broker_figures(up_only=True) == BrokerFigures(1, default_replicas=0)


async def test_a_topic_is_created_with_its_replicas(admin: LogAdmin, topic_name: str):
    """Both the factor and how many must be in sync; the second is a config of the topic."""
    await admin.ensure_topics([TopicSpec(topic_name, 2, {POLICY: "compact"}, Replicas(1, 1))])
    assert (await admin.describe_topics([topic_name]))[topic_name].replica_count == 1
    configs = {POLICY: "compact", "min.insync.replicas": "1"}
    assert await admin.topic_overrides([topic_name]) == {topic_name: configs}


async def test_a_topic_with_fewer_replicas_passes(admin: LogAdmin, topic_name: str):
    """Replicas are what a topic is created with; one that exists is neither refused nor changed."""
    await admin.ensure_topics([TopicSpec(topic_name, 1)])
    await admin.ensure_topics([TopicSpec(topic_name, 1, replicas=Replicas(3, 2))])
    assert (await admin.describe_topics([topic_name]))[topic_name].replica_count == 1
    assert (await admin.topic_configs([topic_name]))[topic_name]["min.insync.replicas"] == "1"


async def test_replicas_without_brokers_are_refused(admin: LogAdmin, topic_name: str):
    """The error says how many brokers are missing; the topic is not created with fewer."""
    with pytest.raises(FatalError, match="3 replicas, but the cluster has 1 broker") as caught:
        await admin.ensure_topics([TopicSpec(topic_name, 1, replicas=Replicas(3, 2))])
    assert caught.value.topic == topic_name
    assert caught.value.detail.startswith("2 brokers missing")
    assert "replication_factor" in caught.value.hint
    assert await admin.describe_topics([topic_name]) == {}
