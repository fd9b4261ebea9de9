"""The addresses of a local broker: its ports, its listeners, and the record that keeps them.

The text of `server.properties` for development: every node is broker and controller.
"""

import fcntl
import os
import secrets
import socket
import tempfile
from collections import deque
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from stilltide.connectors.local.errors import PortTakenError
from stilltide.schemas.topics import ENTRY_BYTES_MAX

HOST = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_767
"""Range of chosen ports, below those that systems give to outgoing connections."""

UNNAMED_VERSION = "4.3"
"""The version of Kafka of a file `cluster.json` that names none: 4.3 was the default when versions
began to be named, and those files stay."""

_PORT_TRIES = 50

_chosen = deque[int](maxlen=1000)
"""Ports that this process chose last: nobody may listen on them yet."""


@dataclass(frozen=True)
class BrokerRecord:
    """The file `cluster.json` of a broker's directory.

    Attributes:
        name: the cluster's name.
        port: port for clients.
        controller_port: port of the KRaft controller that runs in the broker's process.
        cluster_id: Kafka's id of the cluster.
        formatted: whether the storage is formatted.
        pid: process id of the broker that holds the directory, 0 while there is none or it is just
            starting.
        node_id: Kafka's id of the broker, from 1.
        brokers: number of brokers of the cluster.
        kafka_version: release line of Kafka that used the directory last.
    """

    name: str
    port: int
    controller_port: int
    cluster_id: str
    formatted: bool = False
    pid: int = 0
    node_id: int = 1
    brokers: int = 1
    kafka_version: str = UNNAMED_VERSION

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"

    @property
    def title(self) -> str:
        """The broker in messages: `cluster a`, or `broker 2 of cluster a` if it has several."""
        cluster = f"cluster {self.name}"
        return cluster if self.brokers == 1 else f"broker {self.node_id} of {cluster}"


@dataclass(frozen=True)
class Listener:
    """A listener of a broker in addition to its plain one.

    Attributes:
        name: name of the listener in capitals, such as `TLS`.
        protocol: Kafka's security protocol, such as `SASL_SSL`.
        port: port on `host`, chosen by the caller.
        properties: properties of the listener, without the prefix that names it.
        scram_users: passwords by user, for SCRAM-SHA-256; stored when the storage is formatted.
        jvm_flags: options of the JVM that the listener needs.
        host: address of this machine on which the broker listens.
        advertised: `host:port` that clients are told, such as that of a proxy; empty: `bootstrap`.
    """

    name: str
    protocol: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    scram_users: Mapping[str, str] = field(default_factory=dict[str, str])
    jvm_flags: Sequence[str] = ()
    host: str = HOST
    advertised: str = ""

    @property
    def bootstrap(self) -> str:
        """Address on which the broker listens."""
        return f"{self.host}:{self.port}"


def is_free(port: int) -> bool:
    """Whether a server can listen on `port` now."""
    with socket.socket() as probe:
        # As Java's server sockets: connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def require_free(port: int) -> None:
    """Raises `PortTakenError` unless a server can listen on `port` now."""
    if not is_free(port):
        raise PortTakenError(
            f"port {port} is taken: another process listens on {HOST}:{port}",
            hint="stop that process or choose another port (stilltide local up --port N)",
        )


def free_port(*, other_than: Container[int] = ()) -> int:
    """A port that is free now and that other programs rarely use.

    A broker listens some seconds after its port was chosen, so no process of this user chooses the
    same port until this process ends or has chosen a thousand others.
    """
    for _ in range(_PORT_TRIES):
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN + 1)
        if port in other_than or port in _chosen:
            continue
        if is_free(port) and _reserve(port):
            _chosen.append(port)
            return port
    raise PortTakenError(
        f"{_PORT_TRIES} ports tried between {PORT_MIN} and {PORT_MAX} are all taken",
        hint="choose a free port (stilltide local up --port N)",
    )


def _reserve(port: int) -> bool:
    """Keeps `port` from other processes of this user; False if another one has kept it."""
    try:
        fcntl.lockf(_reservations(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _reservations() -> int:
    """A file whose byte of the number of a port is locked by the process that chose the port.

    It stays open, because the system ends a process's locks when the process closes the file.
    """
    path = Path(tempfile.gettempdir()) / f"stilltide-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


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
    advertised = "".join(
        f",{each.name}://{each.advertised or each.bootstrap}" for each in listeners
    )
    return {
        "process.roles": "broker,controller",
        "node.id": str(record.node_id),
        "controller.quorum.voters": ",".join(
            f"{node}@{HOST}:{port}" for node, port in sorted(voters.items())
        ),
        "listeners": f"PLAINTEXT://{plain},CONTROLLER://{control}{more}",
        "advertised.listeners": f"PLAINTEXT://{plain}{advertised}",
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
