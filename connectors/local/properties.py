"""The text of `server.properties` for development: every node is broker and controller."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from stilltide.connectors.local.addresses import HOST, BrokerRecord, Listener
from stilltide.schemas.topics import ENTRY_BYTES_MAX

REPLICAS_MAX = 3
"""Replicas of Kafka's internal topics in a cluster of that many brokers or more."""

INTERNAL_PARTITIONS = 3
"""Partitions of each internal topic of a cluster of several brokers: few, to start fast."""


def server_properties(
    record: BrokerRecord,
    log_dir: Path,
    *,
    voters: Mapping[int, int] | None = None,
    listeners: Sequence[Listener] = (),
    more: Mapping[str, str] | None = None,
) -> str:
    """The text of `server.properties`.

    Args:
        record: the broker.
        log_dir: directory of Kafka's data.
        voters: port of each controller by node id; by default the broker's own one only.
        listeners: listeners in addition to the plain one.
        more: properties that are added, and take the place of those of the same name.
    """
    properties = {
        **_addresses(record, voters or {record.node_id: record.controller_port}, listeners),
        "log.dirs": str(log_dir),
        "auto.create.topics.enable": "false",
        **(_internal_topics(record.brokers) if record.brokers > 1 else _INTERNAL_TOPICS_OF_ONE),
        # Short waits, so that tests and demos see a dead worker or transaction soon.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # A killed broker may register again only when its last session has ended (default 9 s).
        # Among several brokers a shorter session would end where the machine is only busy.
        "broker.session.timeout.ms": "2000" if record.brokers == 1 else "4000",
        "broker.heartbeat.interval.ms": "500",
        # Log entries hold up to 4 MiB of records.
        "message.max.bytes": str(ENTRY_BYTES_MAX),
        "replica.fetch.max.bytes": str(ENTRY_BYTES_MAX),
        # The default buffer, 128 MiB, does not fit a small heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "log.cleaner.backoff.ms": "200",
        "log.initial.task.delay.ms": "500",
    }
    if record.kafka_version == "3.9":
        # Share groups came with Kafka 4.0.
        properties = {key: it for key, it in properties.items() if not key.startswith("share.")}
    for each in listeners:
        prefix = f"listener.name.{each.name.lower()}"
        properties |= {f"{prefix}.{key}": value for key, value in each.properties.items()}
    properties |= more or {}
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def _addresses(
    record: BrokerRecord, voters: Mapping[int, int], listeners: Sequence[Listener]
) -> dict[str, str]:
    plain, control = f"{HOST}:{record.port}", f"{HOST}:{record.controller_port}"
    more = "".join(f",{each.name}://{each.bootstrap}" for each in listeners)
    told = "".join(f",{each.name}://{each.advertised or each.bootstrap}" for each in listeners)
    return {
        "process.roles": "broker,controller",
        "node.id": str(record.node_id),
        "controller.quorum.voters": ",".join(
            f"{node}@{HOST}:{port}" for node, port in sorted(voters.items())
        ),
        "listeners": f"PLAINTEXT://{plain},CONTROLLER://{control}{more}",
        "advertised.listeners": f"PLAINTEXT://{plain}{told}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        + "".join(f",{each.name}:{each.protocol}" for each in listeners),
    }


_INTERNAL_TOPICS_OF_ONE = {
    # One node: every internal topic with one replica, and few partitions to start fast.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def _internal_topics(brokers: int) -> dict[str, str]:
    """Three replicas with two in sync where there are three brokers, so that one may fail."""
    replicas = str(min(brokers, REPLICAS_MAX))
    in_sync = "2" if brokers >= REPLICAS_MAX else "1"
    partitions = str(INTERNAL_PARTITIONS)
    return {
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": partitions,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": partitions,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": partitions,
    }
