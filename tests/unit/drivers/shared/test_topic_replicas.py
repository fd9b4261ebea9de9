"""Topics are created with the replicas that the settings want; those with fewer are served."""

import pytest
from structlog.testing import capture_logs

from stilltide.connectors.errors import FatalError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.connector import MemoryConnector
from stilltide.pipeline.core.replicas import AUTOMATIC, WantedReplicas
from stilltide.pipeline.drivers.shared.topic_findings import ensure_replicated
from stilltide.schemas.topics import (
    MIN_INSYNC_REPLICAS,
    TXN_SNAPSHOTS,
    BrokerFigures,
    Replicas,
    TopicSpec,
    system_topics,
)

SPECS = system_topics(coordinators=1, partitions=1)


def replicas(broker: MemoryBroker, topic: str) -> Replicas:
    """As the topic has them."""
    found = broker.topics[topic]
    return Replicas(found.description.replica_count, int(found.configs[MIN_INSYNC_REPLICAS]))


async def test_system_topics_follow_the_cluster():
    """On three brokers every one of them gets three replicas, two of which must be in sync."""
    broker = MemoryBroker(figures=BrokerFigures(3, 1))
    with capture_logs() as logs:
        await ensure_replicated(MemoryConnector(broker).admin(), SPECS, AUTOMATIC)
    assert {replicas(broker, spec.name) for spec in SPECS} == {Replicas(3, 2)}
    assert logs == []


async def test_numbers_win_over_the_cluster():
    """What the settings say is what topics get."""
    broker = MemoryBroker(figures=BrokerFigures(5, 3))
    await ensure_replicated(MemoryConnector(broker).admin(), SPECS, WantedReplicas(4, 3))
    assert {replicas(broker, spec.name) for spec in SPECS} == {Replicas(4, 3)}


async def test_a_topic_with_fewer_replicas_is_served_and_named():
    """The warning has both figures and the commands that mend it; nothing is changed."""
    broker = MemoryBroker(figures=BrokerFigures(3, 1))
    broker.create_topic(TopicSpec("old", 1, replicas=Replicas(1, 1)))
    admin = MemoryConnector(broker).admin()
    with capture_logs() as logs:
        await ensure_replicated(admin, [TopicSpec("old", 1), TopicSpec("new", 1)], AUTOMATIC)
    assert replicas(broker, "old") == Replicas(1, 1)
    assert replicas(broker, "new") == Replicas(3, 2)
    (warning,) = logs
    hint = warning.pop("hint")
    assert warning == {
        "event": "topic_has_few_replicas",
        "log_level": "warning",
        "topic": "old",
        "replication_factor": 1,
        "wanted_replication_factor": 3,
        "min_insync_replicas": 1,
        "wanted_min_insync_replicas": 2,
    }
    assert "kafka-reassign-partitions.sh" in hint
    assert "--topic old --add-config min.insync.replicas=2" in hint


async def test_a_topic_of_an_earlier_version_is_served_and_named():
    """E10: other wanted configs are warned of with the command for them; nothing is changed."""
    broker = MemoryBroker()
    (spec,) = [one for one in SPECS if one.name == TXN_SNAPSHOTS]
    broker.create_topic(TopicSpec(TXN_SNAPSHOTS, 1, spec.configs))
    broker.topics[TXN_SNAPSHOTS].configs["segment.ms"] = "1000"
    before = dict(broker.topics[TXN_SNAPSHOTS].configs)
    with capture_logs() as logs:
        await ensure_replicated(MemoryConnector(broker).admin(), SPECS, AUTOMATIC)
    assert broker.topics[TXN_SNAPSHOTS].configs == before
    (warning,) = logs
    assert warning["event"] == "topic_has_other_configs"
    assert warning["topic"] == TXN_SNAPSHOTS
    wanted = {name: value for name, value in spec.wanted.items() if name != "segment.ms"}
    assert warning["wanted_configs"] == wanted
    assert warning["configs"] == {name: before.get(name) for name in wanted}
    assert "stilltide topics check --apply" in warning["hint"]
    assert f"--topic {TXN_SNAPSHOTS} --add-config segment.bytes=33554432," in warning["hint"]


async def test_a_cluster_of_which_one_broker_is_up_is_warned_of_at_once():
    """`auto` creates topics that can be written to now, and names the replicas that they lack."""
    broker = MemoryBroker(figures=BrokerFigures(1, 1, 3))
    with capture_logs() as logs:
        await ensure_replicated(MemoryConnector(broker).admin(), SPECS, AUTOMATIC)
    assert {replicas(broker, spec.name) for spec in SPECS} == {Replicas(1, 1)}
    assert [one["topic"] for one in logs] == [spec.name for spec in SPECS]
    assert {one["wanted_replication_factor"] for one in logs} == {3}


async def test_missing_brokers_are_named():
    """A number that the cluster cannot meet is an error, not fewer replicas."""
    broker = MemoryBroker(figures=BrokerFigures(2, 1))
    with pytest.raises(FatalError, match="5 replicas, but the cluster has 2 brokers") as caught:
        await ensure_replicated(MemoryConnector(broker).admin(), SPECS, WantedReplicas(5))
    assert caught.value.topic == SPECS[0].name
    assert caught.value.detail.startswith("3 brokers missing")
    assert sorted(broker.topics) == []
