"""Brokers that outlive the command that started them: `stilltide local up|status|down`.

*Invariants*: the lock on the data directory decides whether a broker runs, never a process id,
which may belong to another process by now; a repeated call of a function changes nothing.
"""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.addresses import REPLICAS_MAX
from stilltide.connectors.local.broker import BrokerDir, BrokerOptions, ClusterDir, Launch
from stilltide.connectors.local.errors import BrokerCountError, BrokerDownError, PortTakenError
from stilltide.connectors.local.readiness import (
    POLL_S,
    STOP_TIMEOUT_S,
    StartedBroker,
    await_ready,
    ensure_offsets_topic,
)

NAMES = ("a", "b", "c")
"""Names of local clusters."""

_WRITE_PID_AND_RUN = 'echo $$ >"$0" && exec "$@"'


class ClusterStatus(NamedTuple):
    """A broker of a cluster below a root directory.

    Attributes:
        name: the cluster's name.
        broker: node id of the broker, from 1.
        state: `running` or `stopped`.
        controller: `active` or `standby`; None if the broker is stopped.
        bootstrap: address of the broker for clients.
        pid: process id, None if the broker is stopped or just starting.
        kafka_version: release line of Kafka that used the directory last.
        log: the broker's log.
        data_dir: the broker's directory.
    """

    name: str
    broker: int
    state: str
    controller: str | None
    bootstrap: str
    pid: int | None
    kafka_version: str
    log: str
    data_dir: str


def up(
    name: str,
    root: Path,
    *,
    brokers: int | None = None,
    broker: int | None = None,
    port: int | None = None,
    heap: str = "256m",
    kafka_version: str | None = None,
) -> list[int]:
    """Starts brokers of cluster `name` that do not run, and returns their node ids.

    Returns when all of the cluster's brokers that run answer, and at once while half of the brokers
    or more are down: the others are too few to elect a controller.

    Args:
        name: one of `NAMES`; the cluster's data is in `root/name`.
        root: the directory of all clusters.
        brokers: number of brokers; by default as many as the cluster has, 1 for a new one.
        broker: node id of the only broker to start; by default all are started.
        port: port of broker 1 for clients, the others have the next ones; by default the former
            ports, or free ones.
        heap: the heap of each JVM.
        kafka_version: release line of Kafka, as in `LocalCluster`.

    Raises:
        PortTakenError: a port is in use, or a broker runs on another one.
        KafkaVersionError: there is no such version, or a newer one has used the cluster's data.
        BrokerCountError: the cluster has another number of brokers, or not the given one.
        BrokerDownError: `broker` is given, and the cluster was never started.
        JavaMissingError, JarsError, DataDirInUseError, BrokerStartError: as in `errors`.
    """
    cluster = ClusterDir(root / name, brokers)
    cluster.require_count()
    if broker is not None:
        _require_broker(cluster, name, broker)
    chosen = list(cluster.nodes) if broker is None else [broker]
    running = [node for node, each in cluster.nodes.items() if each.is_held()]
    waiting = [_found(cluster.nodes[node], port and port + node - 1) for node in running]
    starting = [node for node in chosen if node not in running]
    with ExitStack() as kills:
        if starting:
            options = BrokerOptions(heap=heap, kafka_version=kafka_version)
            waiting += _start(cluster, name, starting, options, port=port, kills=kills)
        if len(waiting) * 2 > cluster.brokers:
            await_ready(waiting)
        if len(waiting) >= REPLICAS_MAX and cluster.bootstrap:
            ensure_offsets_topic(cluster.bootstrap)
        kills.pop_all()
    return starting


def status(root: Path) -> list[ClusterStatus]:
    """The brokers of the clusters that have data below `root`, by name and node id."""
    brokers: list[ClusterStatus] = []
    for name in NAMES:
        cluster = ClusterDir(root / name)
        running = {node for node, each in cluster.nodes.items() if each.is_held()}
        active = cluster.controller(running)
        for node, directory in cluster.nodes.items():
            if record := directory.read_record():
                role = "active" if node == active else "standby"
                brokers.append(
                    ClusterStatus(
                        name=name,
                        broker=node,
                        state="running" if node in running else "stopped",
                        controller=role if node in running else None,
                        bootstrap=record.bootstrap,
                        pid=(directory.holder() or None) if node in running else None,
                        kafka_version=record.kafka_version,
                        log=str(directory.log_path),
                        data_dir=str(directory.path),
                    )
                )
    return brokers


def down(
    root: Path, *, names: Sequence[str] = NAMES, broker: int | None = None, wipe: bool = False
) -> list[tuple[str, int]]:
    """Stops brokers of the clusters below `root`; returns name and node id of those that ran.

    Args:
        root: the directory of all clusters.
        names: names of the clusters.
        broker: node id of the only broker to stop; by default all are stopped.
        wipe: whether to delete the clusters' data and logs, too.

    Raises:
        BrokerDownError: a broker is just starting, so that its process id is not known yet; or
            `broker` is given, and its cluster was never started.
        BrokerCountError: a cluster has no such broker.
    """
    clusters = {name: ClusterDir(root / name) for name in names}
    if broker is not None:
        for name, cluster in clusters.items():
            _require_broker(cluster, name, broker)
    stopping = [
        (name, node, directory)
        for name, cluster in clusters.items()
        for node, directory in cluster.nodes.items()
        if broker in (None, node) and directory.is_held()
    ]
    # All at once: those that are left alone wait in vain for the controllers that are gone.
    for _, _, directory in stopping:
        _signal(directory, signal.SIGTERM)
    for _, _, directory in stopping:
        if not _is_released(directory, STOP_TIMEOUT_S):
            _signal(directory, signal.SIGKILL)
            _is_released(directory, STOP_TIMEOUT_S)
    if wipe:
        for cluster in clusters.values():
            if cluster.known:
                _wipe(cluster)
    return [(name, node) for name, node, _ in stopping]


def _require_broker(cluster: ClusterDir, name: str, broker: int) -> None:
    if cluster.known is None:
        raise BrokerDownError(
            f"cluster {name} was never started",
            hint=f"start all of its brokers: stilltide local up --brokers {max(broker, 3)}",
        )
    if broker not in cluster.nodes:
        raise BrokerCountError(
            f"cluster {name} has no broker {broker}",
            hint="stilltide local status shows the brokers of each cluster",
        )


def _found(directory: BrokerDir, port: int | None) -> StartedBroker:
    """A broker that an earlier call started; `port` is the one that it must have, if any."""
    if (record := directory.read_record()) and port not in (None, record.port):
        raise PortTakenError(
            f"{record.title} runs already, at {record.bootstrap} and not on port {port}",
            hint="for a further cluster beside it leave --port out: stilltide local up "
            "--clusters 2; for another port stop it first: stilltide local down",
        )
    return StartedBroker(directory, lambda: None if directory.is_held() else 1, directory.log_size)


def _start(
    cluster: ClusterDir,
    name: str,
    nodes: Sequence[int],
    options: BrokerOptions,
    *,
    port: int | None,
    kills: ExitStack,
) -> list[StartedBroker]:
    """Starts brokers; `kills` gets what ends them if the start fails or is interrupted."""
    started: list[StartedBroker] = []
    with ExitStack() as locks:
        lock_files: dict[int, int] = {}
        for node in nodes:
            lock_files[node] = cluster.nodes[node].hold()
            locks.callback(os.close, lock_files[node])
        for node, launch in cluster.prepare(name, nodes, options, port).items():
            directory = cluster.nodes[node]
            log_begin = directory.log_size
            kills.callback(_kill, directory)
            broker = _spawn(directory, launch, lock_files[node])
            directory.write_record(replace(launch.record, pid=broker.pid))
            started.append(StartedBroker(directory, broker.poll, log_begin))
    return started


def _spawn(directory: BrokerDir, launch: Launch, lock: int) -> "subprocess.Popen[bytes]":
    with launch.log_path.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - arguments are ours
            # The process itself writes its id: `down` finds it, however early this command ends.
            ["/bin/sh", "-c", _WRITE_PID_AND_RUN, str(directory.lock_path), *launch.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock,),
            # Its own session, so that it outlives the terminal.
            start_new_session=True,
        )


def _kill(directory: BrokerDir) -> None:
    """Ends a broker by the id in its lock file: Ctrl-C may come before the id is returned here."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while directory.is_held() and not directory.holder() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if directory.is_held():
        _signal(directory, signal.SIGKILL)
        _is_released(directory, STOP_TIMEOUT_S)


def _signal(directory: BrokerDir, number: signal.Signals) -> None:
    if not (pid := directory.holder()):
        raise BrokerDownError(
            f"the cluster in {directory.path} is just starting",
            hint="try again once it has started",
        )
    with suppress(ProcessLookupError):  # it may have ended just now
        os.kill(pid, number)


def _is_released(directory: BrokerDir, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while directory.is_held():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _wipe(cluster: ClusterDir) -> None:
    with ExitStack() as locks:
        for directory in cluster.nodes.values():
            locks.callback(os.close, directory.hold())
        shutil.rmtree(cluster.path)
