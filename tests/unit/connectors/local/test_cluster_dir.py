"""The directory of a cluster: its shape, its version, and the controller that its brokers know."""

import json
import sys
from pathlib import Path

import pytest

from stilltide.connectors.local.addresses import BrokerRecord, Listener, server_properties
from stilltide.connectors.local.broker import BrokerOptions, ClusterDir, Program
from stilltide.connectors.local.errors import BrokerCountError, KafkaVersionError
from stilltide.connectors.local.jars import (
    KAFKA_VERSIONS,
    PINNED_VERSION,
    VERSION_VARIABLE,
    kafka_version,
)

FIELDS_OF_ONE = {"name", "port", "controller_port", "cluster_id", "formatted", "pid"}


def _record(node: int, brokers: int, version: str = PINNED_VERSION) -> BrokerRecord:
    return BrokerRecord(
        "a",
        20_000 + node,
        21_000 + node,
        "S" * 22,
        formatted=True,
        node_id=node,
        brokers=brokers,
        kafka_version=version,
    )


def _written(path: Path, brokers: int, version: str = PINNED_VERSION) -> ClusterDir:
    """A directory as a cluster leaves it."""
    cluster = ClusterDir(path, brokers)
    for node, directory in cluster.nodes.items():
        directory.path.mkdir(parents=True, exist_ok=True)
        directory.write_record(_record(node, brokers, version))
    return cluster


def _properties(record: BrokerRecord, more: dict[str, str] | None = None) -> dict[str, str]:
    text = server_properties(record, Path("data"), voters={1: 21_001, 2: 21_002}, more=more)
    return dict(line.split("=", 1) for line in text.splitlines())


def test_one_broker_has_the_directory_itself(tmp_path: Path):
    """A file that names no version is of 4.3, the default when it was written."""
    cluster = _written(tmp_path, 1, "4.3")
    assert cluster.nodes[1].path == tmp_path
    assert set(json.loads((tmp_path / "cluster.json").read_text())) == FIELDS_OF_ONE
    assert cluster.nodes[1].read_record() == _record(1, 1, "4.3")
    _written(tmp_path, 1)
    named = json.loads((tmp_path / "cluster.json").read_text())
    assert (set(named) - FIELDS_OF_ONE, named["kafka_version"]) == (
        {"kafka_version"},
        PINNED_VERSION,
    )


def test_several_brokers_have_directories_below(tmp_path: Path):
    """Their number is found again, and their addresses are joined by commas."""
    assert ClusterDir(tmp_path).bootstrap is None
    _written(tmp_path, 3)
    again = ClusterDir(tmp_path)
    assert [each.path.name for each in again.nodes.values()] == ["broker-1", "broker-2", "broker-3"]
    assert again.bootstrap == "127.0.0.1:20001,127.0.0.1:20002,127.0.0.1:20003"
    assert again.nodes[2].read_record() == _record(2, 3)


@pytest.mark.parametrize(("has", "wanted"), [(1, 3), (3, 1)])
def test_another_number_of_brokers_is_refused(tmp_path: Path, has: int, wanted: int):
    """The error names both numbers and the next step."""
    _written(tmp_path, has)
    with pytest.raises(BrokerCountError, match=rf"has {has} brokers?, not {wanted}") as caught:
        ClusterDir(tmp_path, wanted).require_count()
    assert f"--brokers {has}" in caught.value.hint


@pytest.mark.parametrize("wrote", [PINNED_VERSION, "9.9"])
def test_an_older_kafka_does_not_get_newer_data(tmp_path: Path, wrote: str):
    """The error names both versions, also one that is not known yet; nothing is started."""
    cluster = _written(tmp_path, 1, wrote)
    with pytest.raises(KafkaVersionError, match=rf"3\.9 cannot read .* {wrote} wrote"):
        cluster.prepare("a", [1], BrokerOptions(kafka_version="3.9"))


def test_the_version_is_that_of_the_argument_then_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
):
    """An unknown version is refused with those that there are."""
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    assert kafka_version() is None
    monkeypatch.setenv(VERSION_VARIABLE, "4.0")
    assert kafka_version() == "4.0"
    assert kafka_version("3.9") == "3.9"
    with pytest.raises(KafkaVersionError, match=r"Kafka 2\.8") as caught:
        kafka_version("2.8")
    assert ", ".join(KAFKA_VERSIONS) in caught.value.hint


def test_the_controller_is_that_of_the_newest_epoch(tmp_path: Path):
    """A broker that was cut off remembers an older one; a leader that is down is none."""
    cluster = _written(tmp_path, 3)
    for node, (epoch, leader) in {1: (4, 1), 2: (5, 3), 3: (6, -1)}.items():
        log = cluster.nodes[node].path / "kafka" / "__cluster_metadata-0"
        log.mkdir(parents=True)
        (log / "quorum-state").write_text(json.dumps({"leaderEpoch": epoch, "leaderId": leader}))
    assert cluster.controller({1, 2, 3}) == 3
    assert cluster.controller({1, 2}) is None


def test_three_brokers_keep_internal_topics_on_two(tmp_path: Path):
    """Internal topics have three replicas, two in sync; one broker keeps one replica of each."""
    of_three, of_one = _properties(_record(2, 3)), _properties(_record(1, 1))
    assert of_three["node.id"] == "2"
    assert of_three["controller.quorum.voters"] == "1@127.0.0.1:21001,2@127.0.0.1:21002"
    for topic in ("transaction.state.log", "share.coordinator.state.topic"):
        assert (of_three[f"{topic}.replication.factor"], of_three[f"{topic}.min.isr"]) == ("3", "2")
        assert (of_one[f"{topic}.replication.factor"], of_one[f"{topic}.min.isr"]) == ("1", "1")
    assert of_three["offsets.topic.replication.factor"] == "3"
    assert "default.replication.factor" not in of_three


def test_given_properties_come_last():
    """A given property is added, or takes the place of one of the same name."""
    more = {"default.replication.factor": "3", "message.max.bytes": "7"}
    found = _properties(_record(1, 3), more)
    assert (found["default.replication.factor"], found["message.max.bytes"]) == ("3", "7")


def test_a_version_gets_no_property_that_it_does_not_know():
    """Share groups came with Kafka 4.0."""
    for version in KAFKA_VERSIONS:
        found = _properties(_record(1, 3, version))
        assert any(key.startswith("share.") for key in found) == (version != "3.9")


def test_a_listener_may_tell_the_address_of_a_proxy():
    """The broker listens on its own port, and tells clients of this listener another address."""
    listener = Listener("WRITER", "PLAINTEXT", 22_001, advertised="127.0.0.1:23001")
    text = server_properties(_record(1, 3), Path("data"), listeners=[listener])
    found = dict(line.split("=", 1) for line in text.splitlines())
    assert found["listeners"].endswith(",WRITER://127.0.0.1:22001")
    assert found["advertised.listeners"].endswith(",WRITER://127.0.0.1:23001")
    assert found["listener.security.protocol.map"].endswith(",WRITER:PLAINTEXT")


def test_each_broker_has_listeners_of_its_own(tmp_path: Path):
    """Listeners are given by node id; a broker that is not named has the plain one only."""
    options = BrokerOptions(
        listeners={
            node: [Listener("WRITER", "PLAINTEXT", 22_000 + node, advertised=f"127.0.0.1:{node}")]
            for node in (1, 3)
        }
    )
    cluster, program = _written(tmp_path, 3), Program(Path(sys.executable), [])
    told: list[str] = []
    for node, directory in cluster.nodes.items():
        directory.prepare(_record(node, 3), {1: 21_001}, options, program)
        lines = (directory.path / "server.properties").read_text().splitlines()
        told += [line for line in lines if line.startswith("advertised.listeners=")]
    assert [line.rpartition("PLAINTEXT://")[2] for line in told] == [
        "127.0.0.1:20001,WRITER://127.0.0.1:1",
        "127.0.0.1:20002",
        "127.0.0.1:20003,WRITER://127.0.0.1:3",
    ]
