"""A broker of a cluster as a child process of this process.

*Invariants*: the broker dies with the owner's process, even if that is killed by SIGKILL
(`watchdog`); started again on the same directory it has the same data and address.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import IO

from stilltide.connectors.local import watchdog
from stilltide.connectors.local.broker import BrokerDir, BrokerOptions, ClusterDir, Launch
from stilltide.connectors.local.errors import BrokerDownError
from stilltide.connectors.local.readiness import (
    STOP_TIMEOUT_S,
    StartedBroker,
    await_ready,
)


class LocalBroker:
    """One broker of a `LocalCluster`. An instance is for one thread at a time.

    Attributes:
        node_id: Kafka's id of the broker, from 1.
        log_path: the broker's log, of all its starts.
    """

    def __init__(
        self, cluster: ClusterDir, node_id: int, name: str, options: BrokerOptions, port: int | None
    ) -> None:
        """Makes a broker that is not started; creates no file.

        Args:
            cluster: the directory of the broker's cluster.
            node_id: which broker of the cluster.
            name: the cluster's name.
            options: how the broker is started.
            port: port of broker 1 for clients; None as in `ClusterDir.prepare`.
        """
        self.node_id = node_id
        self._cluster = cluster
        self._directory: BrokerDir = cluster.nodes[node_id]
        self._name = name
        self._options = options
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._paused = False

    @property
    def log_path(self) -> Path:
        """The broker's log, of all its starts."""
        return self._directory.log_path

    @property
    def bootstrap(self) -> str:
        """`host:port` of this broker for clients; available from the cluster's first start on.

        Raises:
            BrokerDownError: the cluster was never started.
        """
        record = self._directory.read_record()
        if record is None:
            raise BrokerDownError(f"cluster {self._name} was never started", hint="call start()")
        return record.bootstrap

    @property
    def pid(self) -> int:
        """Process id of the JVM.

        Raises:
            BrokerDownError: the broker does not run.
        """
        self._running()
        return self._pid

    @property
    def is_running(self) -> bool:
        """Whether the JVM runs; a paused JVM counts as running."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_paused(self) -> bool:
        """Whether the JVM runs and is frozen by `pause`."""
        return self.is_running and self._paused

    def start(self, timeout_s: float | None = None) -> None:
        """Starts the broker and returns when it answers; does nothing if it runs already.

        The broker answers only while more than half of the cluster's brokers run, this one
        included: they are the controllers, too. `LocalCluster.start` starts all that are down.

        Raises:
            JavaMissingError, JarsError, PortTakenError, DataDirInUseError: as in `errors`.
            BrokerStartError: the broker ended or gave no answer in time; quotes its log.
        """
        start_all([self], nodes=[self.node_id], timeout_s=timeout_s)

    def stop(self) -> None:
        """Shuts the broker down by SIGTERM, after 20 s by SIGKILL. Safe when it is down."""
        end_all([self], signal.SIGTERM)

    def kill(self) -> None:
        """Kills the JVM with SIGKILL and returns when it is gone. Safe when it is down."""
        end_all([self], signal.SIGKILL)

    def pause(self) -> None:
        """Freezes the JVM (SIGSTOP): connections stay open, nothing answers.

        Raises:
            BrokerDownError: the broker does not run.
        """
        self._running()
        self._send(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Continues a frozen JVM (SIGCONT).

        Raises:
            BrokerDownError: the broker does not run.
        """
        self._running()
        self._send(signal.SIGCONT)
        self._paused = False

    def hold(self) -> int:
        """Locks the directory of a broker that does not run; as `BrokerDir.hold`."""
        self.release()
        return self._directory.hold()

    def prepare(self, starting: Sequence["LocalBroker"]) -> list[Launch]:
        """Makes brokers of this broker's cluster ready to be started; as `ClusterDir.prepare`."""
        launches = self._cluster.prepare(
            self._name, [each.node_id for each in starting], self._options, self._port
        )
        return [launches[each.node_id] for each in starting]

    def spawn(self, launch: Launch, lock: int) -> StartedBroker:
        """Starts the process, which inherits the lock; returns before the broker answers."""
        log_begin = self._directory.log_size
        self._process = _spawn(launch, lock)
        self._paused = False
        self._pid = int(_pipe(self._process.stdout).readline() or 0)
        self._directory.write_record(replace(launch.record, pid=self._pid))
        return StartedBroker(self._directory, self._process.poll, log_begin)

    def begin_end(self, number: signal.Signals) -> None:
        """Sends a signal that ends the broker; it also reaches a frozen JVM."""
        if self.is_running:
            if number != signal.SIGKILL:
                self._send(signal.SIGCONT)
            self._send(number)

    def await_end(self) -> None:
        """Returns when the JVM is gone, which is killed after 20 s."""
        if self._process is not None:
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                self._process.wait()
        self.release()

    def release(self) -> None:
        """Forgets a process that has ended."""
        if self._process is not None:
            _pipe(self._process.stdin).close()
            _pipe(self._process.stdout).close()
        self._process = None
        self._paused = False

    def _running(self) -> None:
        if not self.is_running:
            of = f"broker {self.node_id}" if self._cluster.brokers > 1 else "the broker"
            raise BrokerDownError(
                f"{of} of cluster {self._name} does not run",
                hint=f"start the broker; its log is {self.log_path}",
            )

    def _send(self, number: signal.Signals) -> None:
        """Sends a signal to the JVM through the watchdog, and waits for it; the JVM may be gone."""
        assert self._process is not None
        try:
            _pipe(self._process.stdin).write(bytes([number]))
        except BrokenPipeError:
            return
        _pipe(self._process.stdout).read(1)


def start_all(
    brokers: Sequence[LocalBroker], *, nodes: Collection[int], timeout_s: float | None = None
) -> None:
    """Starts those brokers of one cluster that do not run, and returns when they answer.

    Args:
        brokers: the brokers.
        nodes: ids of the brokers that the metadata must show.
        timeout_s: time-out of the start of all; by default as long as they make progress.

    Raises:
        JavaMissingError, JarsError, PortTakenError, DataDirInUseError: as in `errors`.
        BrokerStartError: a broker ended or gave no answer in time; quotes its log.
    """
    down = [each for each in brokers if not each.is_running]
    if not down:
        return
    try:
        with ExitStack() as locks:
            lock_files: list[int] = []
            for each in down:
                lock_files.append(lock := each.hold())
                locks.callback(os.close, lock)
            launches = down[0].prepare(down)
            started = [
                each.spawn(launch, lock)
                for each, launch, lock in zip(down, launches, lock_files, strict=True)
            ]
        await_ready(started, nodes=nodes, timeout_s=timeout_s)
    except BaseException:
        end_all(down, signal.SIGKILL)
        raise


def end_all(brokers: Sequence[LocalBroker], number: signal.Signals) -> None:
    """Sends a signal to all of the brokers that run, and returns when they are gone."""
    for each in brokers:
        each.begin_end(number)
    for each in brokers:
        each.await_end()


def _spawn(launch: Launch, lock: int) -> "subprocess.Popen[bytes]":
    with launch.log_path.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - arguments are ours
            [sys.executable, "-I", "-S", str(watchdog.__file__), *launch.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            pass_fds=(lock,),
            # Its own session, so that Ctrl-C reaches only the owner, which shuts the broker down.
            start_new_session=True,
        )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
