"""A local cluster of three brokers: its shape, and the failure of one broker."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.cimpl import NewTopic

from stilltide.connectors.local.cluster import LocalCluster
from tests.support.processes.local import read_values, write_values

INTERNAL = ("__consumer_offsets", "__transaction_state")
VALUES = [b"one", b"two", b"three"]
_TIMEOUT_S = 180


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three brokers of this module's own."""
    with LocalCluster(
        "three",
        tmp_path_factory.mktemp("three"),
        brokers=3,
        fast_start=True,
        properties={"log.retention.hours": "5"},
    ) as cluster:
        yield cluster


@pytest.fixture
def healthy(three: LocalCluster) -> LocalCluster:
    """The module's cluster, with the brokers started that the last test left down."""
    three.start()
    return three


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def _create(cluster: LocalCluster, topic: str, **config: str) -> None:
    new = NewTopic(topic, 1, 3, config={key.replace("_", "."): it for key, it in config.items()})
    admin = _admin(cluster.bootstrap)
    admin.create_topics([new])[topic].result(_TIMEOUT_S)


def _config(cluster: LocalCluster, kind: ConfigResource.Type, name: str) -> dict[str, str]:
    resource = ConfigResource(kind, name)
    admin = _admin(cluster.bootstrap)
    found = admin.describe_configs([resource])[resource].result(_TIMEOUT_S)
    return {key: entry.value for key, entry in found.items()}


def test_every_broker_is_part_of_one_cluster(healthy: LocalCluster):
    """Each broker has its own process and address, and each knows all three."""
    addresses = healthy.bootstrap.split(",")
    assert len(set(addresses)) == 3
    assert len({each.pid for each in healthy.brokers.values()}) == 3
    for node, address in enumerate(addresses, start=1):
        assert healthy.broker(node).bootstrap == address
        assert set(_admin(address).list_topics(timeout=_TIMEOUT_S).brokers) == {1, 2, 3}


def test_internal_topics_survive_one_broker(healthy: LocalCluster):
    """Offsets and transactions have three replicas and need two; other topics keep the default."""
    producer = Producer({"bootstrap.servers": healthy.bootstrap, "transactional.id": "first"})
    producer.init_transactions(_TIMEOUT_S)
    topics = _admin(healthy.bootstrap).list_topics(timeout=_TIMEOUT_S).topics
    for name in INTERNAL:
        assert {len(it.replicas) for it in topics[name].partitions.values()} == {3}
        config = _config(healthy, ConfigResource.Type.TOPIC, name)
        assert config["min.insync.replicas"] == "2"
        assert config["cleanup.policy"] == "compact"
    broker = _config(healthy, ConfigResource.Type.BROKER, "1")
    assert broker["default.replication.factor"] == "1"
    assert broker["log.retention.hours"] == "5"


def test_killed_controller_is_replaced(healthy: LocalCluster, topic_name: str):
    """Records that two replicas acknowledged are read, and more written, without the killed one."""
    _create(healthy, topic_name, min_insync_replicas="2")
    write_values(healthy.bootstrap, topic_name, VALUES)
    killed = healthy.controller()
    addresses = healthy.bootstrap
    healthy.broker(killed).kill()
    assert not healthy.is_running
    successor = healthy.controller()
    assert successor != killed
    write_values(addresses, topic_name, VALUES)
    assert read_values(addresses, topic_name) == VALUES * 2
    healthy.broker(killed).start()
    assert healthy.bootstrap == addresses
    assert healthy.is_running


def test_paused_controller_is_replaced(healthy: LocalCluster):
    """A controller that is frozen loses its office, and comes back as a broker when resumed."""
    paused = healthy.controller()
    healthy.broker(paused).pause()
    assert healthy.controller() != paused
    healthy.broker(paused).resume()
    assert healthy.controller() != paused


@pytest.mark.slow
def test_restart_of_all_keeps_addresses_and_data(healthy: LocalCluster, topic_name: str):
    """Brokers that were all killed at once come back at the same addresses with their records."""
    _create(healthy, topic_name, min_insync_replicas="2")
    write_values(healthy.bootstrap, topic_name, VALUES)
    addresses = healthy.bootstrap
    healthy.kill()
    healthy.start()
    assert healthy.bootstrap == addresses
    assert read_values(addresses, topic_name) == VALUES
