"""The addresses of a local broker: its ports, its listeners, and the record that keeps them."""

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
from stilltide.connectors.local.jars import PINNED_VERSION

HOST = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_767
"""Range of chosen ports, below those that systems give to outgoing connections."""

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
    kafka_version: str = PINNED_VERSION

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
