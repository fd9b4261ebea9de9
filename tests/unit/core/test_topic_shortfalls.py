"""What falls short in a topic, and what a command may alter."""

import pytest

from stilltide.pipeline.core.topic_shortfalls import (
    Remedy,
    TopicState,
    alter_command,
    alterations,
    shortfalls,
)
from stilltide.schemas.topics import (
    TXN_LOG,
    TXN_MARKERS,
    TXN_REQUESTS,
    PartitionReplicas,
    Replicas,
    TopicSpec,
    serves,
    system_topics,
)

MIN_INSYNC = "min.insync.replicas"
THREE = PartitionReplicas((1, 2, 3), (1, 2, 3))
SPECS = {one.name: one for one in system_topics(coordinators=2, partitions=2)}


def spec(name: str) -> TopicSpec:
    """A system topic with three replicas, of which two must be in sync."""
    it = SPECS[name]
    return TopicSpec(name, it.partition_count, it.configs, Replicas(3, 2), it.wanted)


def state(name: str, placement: PartitionReplicas = THREE, **configs: str) -> TopicState:
    """The topic as it should be, but for these configs; `_` in their names stands for a dot."""
    given = {key.replace("_", "."): value for key, value in configs.items()}
    good = {**spec(name).created_configs, "compression.type": "producer"}
    return TopicState((placement,) * spec(name).partition_count, good | given)


@pytest.mark.parametrize("name", SPECS)
def test_a_topic_as_it_was_created_is_good(name: str):
    """Nothing falls short in what a worker creates, whatever its other configs."""
    assert shortfalls(spec(name), state(name)) == []


def test_what_compacts_is_bounded():
    """E10: every compacted topic has the bounds, every topic that deletes keeps all bytes."""
    for it in SPECS.values():
        policy = it.configs["cleanup.policy"]
        assert ("max.compaction.lag.ms" in it.wanted) == ("compact" in policy), it.name
        assert ("retention.bytes" in it.wanted) == ("delete" in policy), it.name
    assert dict(SPECS[TXN_MARKERS].wanted) == {
        "segment.bytes": "33554432",
        "segment.ms": "600000",
        "max.compaction.lag.ms": "1200000",
        "min.cleanable.dirty.ratio": "0.1",
        "delete.retention.ms": "3600000",
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
    }


def test_a_topic_with_the_brokers_defaults_is_mended_by_a_command():
    """E10: all bounds are altered, to the wanted values, and nothing else."""
    defaults = {
        "segment_bytes": "1073741824",
        "segment_ms": "604800000",
        "max_compaction_lag_ms": "9223372036854775807",
        "min_cleanable_dirty_ratio": "0.5",
        "delete_retention_ms": "86400000",
        "retention_bytes": "1000000",
        "message_timestamp_type": "CreateTime",
    }
    found = shortfalls(spec(TXN_MARKERS), state(TXN_MARKERS, THREE, **defaults))
    assert {it.remedy for it in found} == {Remedy.ALTER}
    assert alterations(found) == dict(spec(TXN_MARKERS).wanted)


@pytest.mark.parametrize(
    ("name", "found", "good"),
    [
        ("segment.bytes", "1048576", True),
        ("segment.bytes", "33554433", False),
        ("min.cleanable.dirty.ratio", "0.01", True),
        ("max.compaction.lag.ms", None, False),
        ("delete.retention.ms", "0", False),
        ("retention.bytes", "-1", True),
        ("retention.bytes", "1", False),
    ],
)
def test_a_tighter_bound_serves(name: str, found: str | None, *, good: bool):
    """An operator may compact more often; tombstones must stay, and nothing is deleted by size."""
    wanted = dict(SPECS[TXN_MARKERS].wanted)
    assert serves(name, found, wanted[name]) is good


def test_too_few_replicas_are_for_reassignment():
    """The partition with the fewest replicas counts; the config waits for replicas in sync."""
    short = TopicState(
        (THREE, PartitionReplicas((1,), (1,))), state(TXN_LOG, min_insync_replicas="1")[1]
    )
    factor, in_sync = shortfalls(spec(TXN_LOG), short)
    assert (factor.what, factor.expected, factor.actual) == ("replication.factor", "3", "1")
    assert factor.remedy is Remedy.REASSIGN
    assert (in_sync.what, in_sync.remedy) == (MIN_INSYNC, Remedy.BY_HAND)
    assert "once 3 replicas are in sync" in in_sync.step


def test_in_sync_replicas_are_raised_only_where_writes_go_on():
    """Two of three in sync are enough for `min.insync.replicas` of two; two of two are not."""
    for placement, remedy in (
        (PartitionReplicas((1, 2, 3), (1, 2)), Remedy.ALTER),
        (PartitionReplicas((1, 2, 3), (1,)), Remedy.BY_HAND),
        (PartitionReplicas((1, 2), (1, 2)), Remedy.BY_HAND),
    ):
        found = state(TXN_LOG, placement, min_insync_replicas="1")
        short = {one.what: one for one in shortfalls(spec(TXN_LOG), found)}
        assert short[MIN_INSYNC].remedy is remedy
    assert shortfalls(spec(TXN_LOG), state(TXN_LOG, min_insync_replicas="3")) == []


def test_in_sync_replicas_of_kafkas_own_topics_wait_for_replicas_too():
    """The operator raises them by hand, and not while writes would stop."""
    own = TopicSpec("__consumer_offsets", 1, replicas=Replicas(3, 2))
    configs = {MIN_INSYNC: "1"}
    (enough,) = shortfalls(own, TopicState((THREE,), configs))
    assert (enough.remedy, "kafka-configs.sh" in enough.step) == (Remedy.BY_HAND, True)
    (few,) = shortfalls(own, TopicState((PartitionReplicas((1, 2, 3), (1,)),), configs))
    assert (few.remedy, "once 3 replicas are in sync" in few.step) == (Remedy.BY_HAND, True)


def test_another_policy_is_for_the_operator():
    """What the cleaner has removed already may matter; the command is named, not run."""
    (one,) = shortfalls(spec(TXN_MARKERS), state(TXN_MARKERS, cleanup_policy="delete"))
    assert one.remedy is Remedy.BY_HAND
    assert "cleanup.policy=[compact,delete]" in one.step
    assert shortfalls(spec(TXN_MARKERS), state(TXN_MARKERS, cleanup_policy="delete,compact")) == []


@pytest.mark.parametrize(
    ("name", "actual", "remedy"),
    [
        (TXN_LOG, "604800000", Remedy.ALTER),
        (TXN_REQUESTS, "1000", Remedy.ALTER),
        (TXN_REQUESTS, "604800000", Remedy.BY_HAND),
        (TXN_REQUESTS, "-1", Remedy.BY_HAND),
    ],
)
def test_retention_is_only_prolonged(name: str, actual: str, remedy: Remedy):
    """A shorter retention deletes records, so only an operator shortens it."""
    (one,) = shortfalls(spec(name), state(name, retention_ms=actual))
    assert one.remedy is remedy
    assert ("deletes records" in one.step) is (remedy is Remedy.BY_HAND)


def test_another_number_of_partitions_is_for_the_operator():
    """Keys and transactions are placed by the number."""
    found = TopicState((THREE,) * 5, state(TXN_LOG).configs)
    (one,) = shortfalls(spec(TXN_LOG), found)
    assert (one.what, one.expected, one.actual) == ("partitions", "2", "5")
    assert one.remedy is Remedy.BY_HAND


def test_kafkas_own_topics_are_never_altered():
    """They belong to every application of the cluster; the command is named."""
    own = TopicSpec("__transaction_state", 1, {}, Replicas(3, 2))
    (one,) = shortfalls(own, TopicState((THREE,), {MIN_INSYNC: "1"}))
    assert one.remedy is Remedy.BY_HAND
    assert one.step == alter_command("__transaction_state", {MIN_INSYNC: "2"})
