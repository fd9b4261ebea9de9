"""A real Kafka cluster that runs as long as its owner, an object of this process.

One broker or several; each is a controller of the cluster, too (KRaft's combined mode).

*Invariants*: the brokers die with the owner's process, even if that is killed by SIGKILL
(`watchdog`); started again on the same directory they have the same data and addresses.

Refuses a directory that another broker holds or that has another number of brokers, and a port that
is taken.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from stilltide.connectors.local.addresses import REPLICAS_MAX, Listener
from stilltide.connectors.local.broker import FAST_START, BrokerOptions, ClusterDir
from stilltide.connectors.local.errors import BrokerDownError
from stilltide.connectors.local.jars import (
    PINNED_VERSION,
    broker_jars,
    class_archive,
    kafka_version,
)
from stilltide.connectors.local.java import find_java
from stilltide.connectors.local.process import LocalBroker, end_all, start_all
from stilltide.connectors.local.readiness import POLL_S, ensure_offsets_topic
from stilltide.connectors.scratch import scratch

CONTROLLER_TIMEOUT_S = 60.0
"""Time-out of `LocalCluster.controller`; an election takes some 3 s on an idle machine."""


class LocalCluster:
    """Brokers as child processes; a context manager that starts and stops them.

    An instance is for one thread at a time.

    Attributes:
        name: the cluster's name, such as `a`.
        brokers: the brokers by node id, from 1.
    """

    def __init__(
        self,
        name: str,
        data_dir: Path,
        *,
        brokers: int = 1,
        port: int | None = None,
        heap: str = "256m",
        fast_start: bool = False,
        listeners: Sequence[Listener] | Mapping[int, Sequence[Listener]] = (),
        properties: Mapping[str, str] | None = None,
        kafka_version: str | None = None,
        jvm_flags: Sequence[str] = (),
    ) -> None:
        """Makes a cluster that is not started; creates no file.

        Args:
            name: the cluster's name.
            data_dir: directory of data, logs and ports; `start` makes it if it is missing.
            brokers: number of brokers. With several, Kafka's internal topics have three replicas
                and two in sync as far as there are brokers; other topics have Kafka's defaults.
            port: port of broker 1 for clients, the others have the next ones; by default the
                directory's former ports, or free ones.
            heap: the heap of each JVM.
            fast_start: whether to start faster, at the cost of requests per second.
            listeners: listeners with TLS, SASL or a proxy before them, in addition to the plain
                one: of a cluster of one broker, or by node id.
            properties: broker properties that are added, and take the place of those of the same
                name, such as `default.replication.factor`.
            kafka_version: release line of Kafka, one of `KAFKA_VERSIONS`; by default the one that
                STILLTIDE_KAFKA_VERSION names, else the one that used the directory last, else the
                pinned one.
            jvm_flags: further JVM options.
        """
        if not isinstance(listeners, Mapping):
            assert brokers == 1 or not listeners, "several brokers need listeners by node id"
            listeners = {1: listeners}
        self.name = name
        self._dir = ClusterDir(data_dir, brokers)
        options = BrokerOptions(
            heap=heap,
            jvm_flags=(*(FAST_START if fast_start else ()), *jvm_flags),
            listeners=listeners,
            properties=properties or {},
            kafka_version=kafka_version,
        )
        self.brokers = {
            node: LocalBroker(self._dir, node, name, options, port) for node in self._dir.nodes
        }

    @property
    def bootstrap(self) -> str:
        """`host:port` of every broker, joined by commas; available from the first start on.

        Raises:
            BrokerDownError: the cluster was never started.
        """
        return ",".join(each.bootstrap for each in self.brokers.values())

    @property
    def log_path(self) -> Path:
        """The log of broker 1, of all its starts."""
        return self.brokers[1].log_path

    @property
    def pid(self) -> int:
        """Process id of the JVM of broker 1; `brokers` has those of the others.

        Raises:
            BrokerDownError: the broker does not run.
        """
        return self.brokers[1].pid

    @property
    def is_running(self) -> bool:
        """Whether the JVMs of all brokers run; a paused JVM counts as running."""
        return all(each.is_running for each in self.brokers.values())

    def broker(self, node_id: int) -> LocalBroker:
        """The broker with this node id, from 1."""
        return self.brokers[node_id]

    def controller(self, timeout_s: float = CONTROLLER_TIMEOUT_S) -> int:
        """Node id of the active controller; waits for an election that is under way.

        A broker that is down or paused is not the active controller.

        Raises:
            BrokerDownError: there was no active controller until the time-out.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            alive = [n for n, it in self.brokers.items() if it.is_running and not it.is_paused]
            if node := self._dir.controller(alive):
                return node
            if time.monotonic() > deadline:
                raise BrokerDownError(
                    f"cluster {self.name} had no active controller within {timeout_s:g} s",
                    detail=f"brokers that run: {', '.join(map(str, alive)) or 'none'}",
                    hint="more than half of the brokers must run",
                )
            time.sleep(POLL_S)

    def start(self, timeout_s: float | None = None) -> None:
        """Starts the brokers that do not run, and returns when they answer with all brokers.

        By default they are waited for as long as they make progress (`StartProgress`).

        Raises:
            JavaMissingError, JarsError, PortTakenError, DataDirInUseError, BrokerCountError,
                KafkaVersionError: as in `errors`.
            BrokerStartError: a broker ended or gave no answer in time; quotes its log.
        """
        start_all(list(self.brokers.values()), nodes=list(self.brokers), timeout_s=timeout_s)
        if len(self.brokers) >= REPLICAS_MAX:
            ensure_offsets_topic(self.bootstrap)

    def stop(self) -> None:
        """Shuts the brokers down by SIGTERM, after 20 s by SIGKILL. Safe when they are down."""
        end_all(list(self.brokers.values()), signal.SIGTERM)

    def kill(self) -> None:
        """Kills the JVMs with SIGKILL and returns when they are gone. Safe when they are down."""
        end_all(list(self.brokers.values()), signal.SIGKILL)

    def pause(self) -> None:
        """Freezes the JVMs (SIGSTOP): connections stay open, nothing answers."""
        for each in self.brokers.values():
            each.pause()

    def resume(self) -> None:
        """Continues frozen JVMs (SIGCONT)."""
        for each in self.brokers.values():
            each.resume()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_class_archive() -> Path:
    """The archive of the classes of a local broker, made by a broker's end unless it is there.

    Every local broker that starts afterwards uses it (`class_archive`). Several processes may make
    one at once.

    Raises:
        As `LocalCluster.start`.
    """
    java, jars = find_java().path, broker_jars(kafka_version() or PINNED_VERSION)
    path = class_archive(java, jars)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Next to its place, because a rename is atomic only within one file system.
        with scratch("archive-", path.parent) as folder:
            made = folder / path.name
            flags = [f"-XX:ArchiveClassesAtExit={made}"]
            with LocalCluster("classes", folder / "a", fast_start=True, jvm_flags=flags):
                """Its end writes the classes that it has loaded."""
            if _is_whole(made, java, jars):
                made.replace(path)
    return path


def _is_whole(archive: Path, java: Path, jars: Sequence[Path]) -> bool:
    """Whether a JVM can use the archive; one that was killed while it wrote leaves a part of it."""
    check = ["-Xshare:on", "-XX:+VerifySharedSpaces", f"-XX:SharedArchiveFile={archive}"]
    command = [str(java), *check, "-cp", os.pathsep.join(map(str, jars)), "-version"]
    done = subprocess.run(command, cwd=archive.parent, capture_output=True, check=False)  # noqa: S603 - arguments are ours
    return done.returncode == 0
