"""The directory of one local broker: its lock, ports, properties and log.

*Invariants*: at most one broker runs on a directory, because the broker process keeps the lock file
open and locked for as long as it lives; once chosen, the ports of a directory stay.
"""

import base64
import fcntl
import json
import os
import secrets
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from stilltide.connectors.local.errors import BrokerStartError, DataDirInUseError, PortTakenError
from stilltide.connectors.local.jars import broker_jars
from stilltide.connectors.local.java import find_java
from stilltide.schemas.topics import ENTRY_BYTES_MAX

HOST = "127.0.0.1"
PORT_MIN, PORT_MAX = 20_000, 32_767
"""Range of chosen ports, below those that systems give to outgoing connections."""

FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM flags: start in 2.5 s instead of 3.3 s, less memory, but fewer requests per second."""

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

_LINES_SHOWN = 15
_PORT_TRIES = 50
_FORMAT_TIMEOUT_S = 180

_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
"""


@dataclass(frozen=True)
class BrokerRecord:
    """The file `cluster.json` of a broker's directory.

    `pid` is the process id of the broker that holds the directory, 0 while there is none or it is
    just starting.
    """

    name: str
    port: int
    controller_port: int
    cluster_id: str
    formatted: bool = False
    pid: int = 0

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"


@dataclass(frozen=True)
class Listener:
    """A listener of a broker in addition to its plain one.

    Attributes:
        name: name of the listener in capitals, such as `TLS`.
        protocol: Kafka's security protocol, such as `SASL_SSL`.
        port: port on HOST, chosen by the caller.
        properties: properties of the listener, without the prefix that names it.
        scram_users: passwords by user, for SCRAM-SHA-256; stored when the storage is formatted.
    """

    name: str
    protocol: str
    port: int
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    scram_users: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def bootstrap(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"


class Launch(NamedTuple):
    """A broker ready to be started: its record, its command, and the log for its output."""

    record: BrokerRecord
    command: list[str]
    log_path: Path


class BrokerDir:
    """The data directory of one broker."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.log_path = self.path / "broker.log"
        self._record_path = self.path / "cluster.json"
        self._lock_path = self.path / "lock"

    def hold(self) -> int:
        """Locks the directory; returns the descriptor that the broker must inherit.

        Raises:
            DataDirInUseError: a broker holds the directory.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            record = self.read_record()
            user = f"cluster {record.name} at {record.bootstrap}" if record else "a broker"
            raise DataDirInUseError(
                f"data directory {self.path} is in use by {user}",
                hint="use that cluster, stop it (stilltide local down), "
                "or name another data directory",
            ) from None
        # The last broker is gone: the system may give its process id to another process.
        if record := self.read_record():
            self.write_record(replace(record, pid=0))
        return descriptor

    def is_held(self) -> bool:
        """Whether a broker runs on the directory."""
        if not self._lock_path.exists():
            return False
        with self._lock_path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def read_record(self) -> BrokerRecord | None:
        """The record that `write_record` wrote last, None if there is none."""
        try:
            return BrokerRecord(**json.loads(self._record_path.read_text()))
        except FileNotFoundError:
            return None

    def write_record(self, record: BrokerRecord) -> None:
        """Stores `record` by an atomic rename."""
        fresh = self._record_path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record), indent=2) + "\n")
        fresh.replace(self._record_path)

    def prepare(
        self,
        name: str,
        *,
        port: int | None,
        heap: str,
        jvm_flags: tuple[str, ...],
        listeners: Sequence[Listener] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> Launch:
        """Makes the directory ready for a broker; the caller holds the directory.

        Args:
            name: the cluster's name.
            port: port for clients; None for the directory's former port, or a free one.
            heap: the JVM's heap, such as `256m`.
            jvm_flags: further JVM options.
            listeners: listeners in addition to the plain one.
            properties: further properties of the broker.

        Raises:
            PortTakenError: a given or remembered port is in use.
            BrokerStartError: the storage could not be formatted.
            JavaMissingError, JarsError: as `find_java` and `broker_jars`.
        """
        java, jars = find_java().path, broker_jars()
        record = self._choose_ports(name, port)
        self.write_record(record)
        config, log4j = self.path / "server.properties", self.path / "log4j2.properties"
        config.write_text(server_properties(record, self.path / "kafka", listeners, properties))
        log4j.write_text(_LOG4J)
        java_on_kafka = [
            str(java),
            *jvm_flags,
            f"-Xmx{heap}",
            f"-Dlog4j2.configurationFile=file:{log4j}",
            "-cp",
            os.pathsep.join(str(jar) for jar in jars),
        ]
        if not record.formatted:
            storage_tool = ["kafka.tools.StorageTool", "format", "-g", "-t", record.cluster_id]
            users = [
                argument
                for listener in listeners
                for user, password in listener.scram_users.items()
                for argument in ("-S", f"SCRAM-SHA-256=[name={user},password={password}]")
            ]
            self._format([*java_on_kafka, *storage_tool, "-c", str(config), *users])
            record = replace(record, formatted=True)
            self.write_record(record)
        return Launch(record, [*java_on_kafka, "kafka.Kafka", str(config)], self.log_path)

    @property
    def log_size(self) -> int:
        """Size of the log in bytes."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def last_lines(self, from_byte: int = 0) -> str:
        """The last lines of the log after `from_byte`, without the frames of stack traces."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(from_byte)
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join([line for line in lines if not line.startswith("\tat ")][-_LINES_SHOWN:])

    def _choose_ports(self, name: str, port: int | None) -> BrokerRecord:
        known = self.read_record()
        if known is None:
            port = port or free_port()
            require_free(port)
            return BrokerRecord(name, port, free_port(other_than=port), _new_cluster_id())
        port = port or known.port
        require_free(port)
        controller = known.controller_port
        if controller == port or not is_free(controller):
            controller = free_port(other_than=port)
        return replace(known, name=name, port=port, controller_port=controller)

    def _format(self, command: list[str]) -> None:
        with self.log_path.open("ab") as log:
            begin = log.tell()
            done = subprocess.run(  # noqa: S603 - arguments are ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=_FORMAT_TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            raise BrokerStartError(
                f"the storage in {self.path} could not be formatted",
                detail=self.last_lines(begin),
                hint=f"the full log is {self.log_path}",
            )


def server_properties(
    record: BrokerRecord,
    log_dir: Path,
    listeners: Sequence[Listener] = (),
    more_properties: Mapping[str, str] = NO_PROPERTIES,
) -> str:
    """The text of `server.properties` for development: one node is broker and controller."""
    plain, control = f"{HOST}:{record.port}", f"{HOST}:{record.controller_port}"
    more = "".join(f",{each.name}://{each.bootstrap}" for each in listeners)
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{control}",
        "listeners": f"PLAINTEXT://{plain},CONTROLLER://{control}{more}",
        "advertised.listeners": f"PLAINTEXT://{plain}{more}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"
        + "".join(f",{each.name}:{each.protocol}" for each in listeners),
        "log.dirs": str(log_dir),
        "auto.create.topics.enable": "false",
        # One node: every internal topic with one replica, and few partitions to start fast.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # Short waits, so that tests and demos see a dead worker or transaction soon.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
        # A killed broker may register again only when its last session has ended (default 9 s).
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # Log entries hold up to 4 MiB of records.
        "message.max.bytes": str(ENTRY_BYTES_MAX),
        "replica.fetch.max.bytes": str(ENTRY_BYTES_MAX),
        # The default buffer, 128 MiB, does not fit a small heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "log.cleaner.backoff.ms": "200",
        "log.initial.task.delay.ms": "500",
    }
    for each in listeners:
        prefix = f"listener.name.{each.name.lower()}"
        properties |= {f"{prefix}.{key}": value for key, value in each.properties.items()}
    properties |= more_properties
    return "".join(f"{key}={value}\n" for key, value in properties.items())


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


def free_port(*, other_than: int = 0) -> int:
    """A port that is free now and that other programs rarely use."""
    for _ in range(_PORT_TRIES):
        port = PORT_MIN + secrets.randbelow(PORT_MAX - PORT_MIN + 1)
        if port != other_than and is_free(port):
            return port
    raise PortTakenError(
        f"{_PORT_TRIES} ports tried between {PORT_MIN} and {PORT_MAX} are all taken",
        hint="choose a free port (stilltide local up --port N)",
    )


def _new_cluster_id() -> str:
    # The form of Kafka's ids; a fixed first letter, as a leading dash would look like an option.
    return "S" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:]
