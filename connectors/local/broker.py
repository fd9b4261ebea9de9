"""The directories of local brokers and clusters: lock, ports, properties and log.

*Invariants*: at most one broker runs on a directory, because the broker process keeps the lock file
open and locked for as long as it lives; once chosen, the ports of a directory stay.
"""

import base64
import fcntl
import json
import os
import re
import secrets
import subprocess
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.addresses import (
    UNNAMED_VERSION,
    BrokerRecord,
    Listener,
    free_port,
    is_free,
    require_free,
    server_properties,
)
from stilltide.connectors.local.errors import (
    BrokerCountError,
    BrokerStartError,
    DataDirInUseError,
    KafkaVersionError,
)
from stilltide.connectors.local.jars import (
    KAFKA_VERSIONS,
    PINNED_VERSION,
    broker_jars,
    class_archive,
    kafka_version,
)
from stilltide.connectors.local.java import find_java

FAST_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""JVM flags: start in 2.5 s instead of 3.3 s, less memory, but fewer requests per second."""

_UNSAID = {"node_id": 1, "brokers": 1, "kafka_version": UNNAMED_VERSION}
"""Values that a record's file leaves out: the file of one broker, as it always was."""

_LINES_SHOWN = 15
_ERROR = re.compile(r"\S+ \S+ (ERROR|FATAL) ")
"""A line of the log that tells an error; see `_LOG4J`."""

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
class BrokerOptions:
    """How the brokers of a cluster are started.

    Attributes:
        heap: the JVM's heap, such as `256m`.
        jvm_flags: further JVM options.
        listeners: listeners in addition to the plain one, by node id.
        properties: broker properties that are added, and take the place of those of the same name.
        kafka_version: release line of Kafka; None for the one that STILLTIDE_KAFKA_VERSION names,
            else the one that used the directory last, else the pinned one.
    """

    heap: str = "256m"
    jvm_flags: tuple[str, ...] = ()
    listeners: Mapping[int, Sequence[Listener]] = field(
        default_factory=dict[int, Sequence[Listener]]
    )
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    kafka_version: str | None = None


class Program(NamedTuple):
    """What runs brokers: a Java launcher, and the jars of Kafka."""

    java: Path
    jars: Sequence[Path]


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
        self.lock_path = self.path / "lock"

    def hold(self) -> int:
        """Locks the directory; returns the descriptor that the broker must inherit.

        Raises:
            DataDirInUseError: a broker holds the directory.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            record = self.read_record()
            user = f"{record.title} at {record.bootstrap}" if record else "a broker"
            raise DataDirInUseError(
                f"data directory {self.path} is in use by {user}",
                hint="use that cluster, stop it (stilltide local down), "
                "or name another data directory",
            ) from None
        # The last broker is gone: the system may give its process id to another process.
        os.ftruncate(descriptor, 0)
        if record := self.read_record():
            self.write_record(replace(record, pid=0))
        return descriptor

    def is_held(self) -> bool:
        """Whether a broker runs on the directory."""
        if not self.lock_path.exists():
            return False
        with self.lock_path.open() as file:
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

    def holder(self) -> int:
        """Process id of the broker that holds the directory, 0 while it is just starting.

        A detached broker writes its process id into the lock file before its starter writes the id
        into the record.
        """
        record = self.read_record()
        return (record.pid if record else 0) or int(self.lock_path.read_text() or 0)

    def write_record(self, record: BrokerRecord) -> None:
        """Stores `record` by an atomic rename."""
        fresh = self._record_path.with_suffix(".new")
        values = {key: it for key, it in asdict(record).items() if _UNSAID.get(key) != it}
        fresh.write_text(json.dumps(values, indent=2) + "\n")
        fresh.replace(self._record_path)

    def prepare(
        self,
        record: BrokerRecord,
        voters: Mapping[int, int],
        options: BrokerOptions,
        program: Program,
    ) -> Launch:
        """Makes the directory ready for a broker; the caller holds the directory.

        Args:
            record: the broker, with the ports that it shall have; stored.
            voters: port of each controller of the cluster by node id.
            options: how the broker is started.
            program: Java and the jars of the record's version of Kafka.

        Raises:
            BrokerStartError: the storage could not be formatted.
        """
        self.write_record(record)
        listeners = options.listeners.get(record.node_id, ())
        properties, log4j = self.path / "server.properties", self.path / "log4j2.properties"
        properties.write_text(
            server_properties(
                record,
                self.path / "kafka",
                voters=voters,
                listeners=listeners,
                more=options.properties,
            )
        )
        log4j.write_text(_LOG4J)
        archive = class_archive(program.java, program.jars)
        java_on_kafka = [
            str(program.java),
            *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []),
            *options.jvm_flags,
            *(flag for listener in listeners for flag in listener.jvm_flags),
            f"-Xmx{options.heap}",
            f"-Dlog4j2.configurationFile=file:{log4j}",
            "-cp",
            os.pathsep.join(str(jar) for jar in program.jars),
        ]
        if not record.formatted:
            storage_tool = ["kafka.tools.StorageTool", "format", "-g", "-t", record.cluster_id]
            users = _users(listeners)
            self._format([*java_on_kafka, *storage_tool, "-c", str(properties), *users])
            record = replace(record, formatted=True)
            self.write_record(record)
        return Launch(record, [*java_on_kafka, "kafka.Kafka", str(properties)], self.log_path)

    def leader_seen(self) -> tuple[int, int] | None:
        """Epoch and node id of the controller that this broker knew last; None if it knew none.

        Kafka keeps both in the file `quorum-state` of the metadata log.
        """
        path = self.path / "kafka" / "__cluster_metadata-0" / "quorum-state"
        try:
            state = json.loads(path.read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or just being written
            return None
        epoch, leader = int(state["leaderEpoch"]), int(state["leaderId"])
        return (epoch, leader) if leader > 0 else None

    @property
    def log_size(self) -> int:
        """Size of the log in bytes."""
        return self.log_path.stat().st_size if self.log_path.exists() else 0

    def failure_lines(self, from_byte: int = 0) -> str:
        """The lines of the log after `from_byte` that tell why the broker ended.

        They begin with the first error, which many lines about the shutdown follow; they are the
        last lines of a log without an error. The frames of stack traces are left out.
        """
        try:
            with self.log_path.open("rb") as file:
                file.seek(from_byte)
                lines = file.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        messages = [line for line in lines if not line.startswith("\tat ")]
        errors = (at for at, line in enumerate(messages) if _ERROR.match(line))
        first = next(errors, max(0, len(messages) - _LINES_SHOWN))
        return "\n".join(messages[first : first + _LINES_SHOWN])

    def _format(self, command: list[str]) -> None:
        with self.log_path.open("ab") as log:
            begin = log.tell()
            try:
                code = subprocess.run(  # noqa: S603 - arguments are ours
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=_FORMAT_TIMEOUT_S,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = None
        if code != 0:
            raise BrokerStartError(
                f"the storage in {self.path} could not be formatted",
                detail=self.failure_lines(begin),
                hint=f"the full log is {self.log_path}",
            )


class ClusterDir:
    """The data directory of a cluster.

    One broker has the directory itself; several have a directory each below: `broker-1`, ...
    """

    def __init__(self, path: Path, brokers: int | None = None) -> None:
        """Creates no file.

        Args:
            path: the directory.
            brokers: number of brokers; by default as many as `path` has, and 1 where it has none.
        """
        self.path = path.resolve()
        self.brokers = brokers or self.known or 1
        self.nodes = (
            {1: BrokerDir(self.path)}
            if self.brokers == 1
            else {n: BrokerDir(self.path / f"broker-{n}") for n in range(1, self.brokers + 1)}
        )

    @property
    def known(self) -> int | None:
        """Number of brokers that the directory was made for, None before the first start."""
        directories = [self.path, *sorted(self.path.glob("broker-*"))]
        records = [BrokerDir(each).read_record() for each in directories]
        return next((record.brokers for record in records if record), None)

    @property
    def bootstrap(self) -> str | None:
        """Addresses for clients, joined by commas; None before the first start."""
        records = [each.read_record() for each in self.nodes.values()]
        return ",".join(record.bootstrap for record in records if record) or None

    def controller(self, among: Collection[int]) -> int | None:
        """The active controller if it is one `among` these nodes, None while none is known."""
        seen = [view for each in self.nodes.values() if (view := each.leader_seen())]
        _, leader = max(seen, default=(0, 0))
        return leader if leader in among else None

    def prepare(
        self, name: str, starting: Sequence[int], options: BrokerOptions, port: int | None = None
    ) -> dict[int, Launch]:
        """Makes brokers ready to be started, all at once; the caller holds their directories.

        Args:
            name: the cluster's name.
            starting: ids of the brokers.
            options: how the brokers are started.
            port: port of broker 1 for clients, the others have the next ones; None for the former
                ports, or free ones.

        Raises:
            BrokerCountError: the directory is that of a cluster of another number of brokers.
            KafkaVersionError: there is no such version, or a newer one has used the directory.
            PortTakenError: a given or remembered port is in use.
            JavaMissingError, JarsError: as `find_java` and `broker_jars`.
            BrokerStartError: as `BrokerDir.prepare`.
        """
        self.require_count()
        version = self._choose_version(options.kafka_version)
        # Once and before any file is written, not in each thread.
        program = Program(find_java().path, broker_jars(version))
        records = self._choose_ports(name, starting, port)
        records = {node: replace(it, kafka_version=version) for node, it in records.items()}
        voters = {node: record.controller_port for node, record in records.items()}
        with ThreadPoolExecutor(len(starting)) as threads:
            launches = threads.map(
                lambda node: self.nodes[node].prepare(records[node], voters, options, program),
                starting,
            )
            return dict(zip(starting, launches, strict=True))

    def require_count(self) -> None:
        """Raises `BrokerCountError` if the directory is that of another number of brokers."""
        if (known := self.known) not in (None, self.brokers):
            raise BrokerCountError(
                f"the cluster in {self.path} has {_counted(known)}, not {self.brokers}",
                hint=f"start it as it is (--brokers {known}), name another data directory, or "
                "delete its data: stilltide local down --wipe",
            )

    def _choose_version(self, asked: str | None) -> str:
        records = [record for each in self.nodes.values() if (record := each.read_record())]
        newest = max((it.kafka_version for it in records if it.formatted), key=_age, default=None)
        version = kafka_version(asked) or newest or PINNED_VERSION
        if newest and (_age(version) < _age(newest) or newest not in KAFKA_VERSIONS):
            raise KafkaVersionError(
                f"Kafka {version} cannot read the data in {self.path}: Kafka {newest} wrote it",
                hint=f"start Kafka {newest}, name another data directory, or delete the data: "
                "stilltide local down --wipe",
            )
        return version

    def _choose_ports(
        self, name: str, starting: Collection[int], port: int | None
    ) -> dict[int, BrokerRecord]:
        """The records of all brokers; those of brokers that never ran are stored, too."""
        known = {
            node: record for node, each in self.nodes.items() if (record := each.read_record())
        }
        taken = {it for record in known.values() for it in (record.port, record.controller_port)}
        cluster_id = next((it.cluster_id for it in known.values()), None) or _new_cluster_id()
        for node, directory in self.nodes.items():
            own = None if port is None else port + node - 1
            record = known.get(node)
            if record is None:
                own = own or free_port(other_than=taken)
                taken.add(own)
                control = free_port(other_than=taken)
                taken.add(control)
                known[node] = BrokerRecord(
                    name, own, control, cluster_id, node_id=node, brokers=self.brokers
                )
            elif node in starting:
                known[node] = self._again(replace(record, name=name, port=own or record.port))
            if node in starting:
                require_free(known[node].port)
            elif record is None:
                directory.path.mkdir(parents=True, exist_ok=True)
                directory.write_record(known[node])
        return known

    def _again(self, record: BrokerRecord) -> BrokerRecord:
        if self.brokers > 1:
            # The other brokers may run, and know the controller's port.
            require_free(record.controller_port)
        elif record.controller_port == record.port or not is_free(record.controller_port):
            return replace(record, controller_port=free_port(other_than={record.port}))
        return record


def _users(listeners: Sequence[Listener]) -> list[str]:
    """The arguments of Kafka's storage tool that store the passwords of SCRAM."""
    return [
        argument
        for listener in listeners
        for user, password in listener.scram_users.items()
        for argument in ("-S", f"SCRAM-SHA-256=[name={user},password={password}]")
    ]


def _age(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _counted(brokers: int | None) -> str:
    return "1 broker" if brokers == 1 else f"{brokers} brokers"


def _new_cluster_id() -> str:
    # The form of Kafka's ids; a fixed first letter, as a leading dash would look like an option.
    return "S" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")[1:]
