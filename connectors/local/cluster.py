"""A real Kafka cluster of one node that runs as long as its owner, an object of this process.

*Invariants*: the broker dies with the owner's process, even if that is killed by SIGKILL
(`watchdog`); started again on the same directory it has the same data and address.

Refuses a directory that another broker holds, and a port that is taken.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from stilltide.connectors.local import watchdog
from stilltide.connectors.local.broker import FAST_START, NO_PROPERTIES, BrokerDir, Launch, Listener
from stilltide.connectors.local.errors import BrokerDownError
from stilltide.connectors.local.readiness import START_TIMEOUT_S, STOP_TIMEOUT_S, await_ready


class LocalCluster:
    """One broker as a child process; a context manager that starts and stops it.

    An instance is for one thread at a time.

    Attributes:
        name: the cluster's name, such as `a`.
        log_path: the broker's log, of all its starts.
    """

    def __init__(
        self,
        name: str,
        data_dir: Path,
        *,
        port: int | None = None,
        heap: str = "256m",
        fast_start: bool = False,
        listeners: Sequence[Listener] = (),
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> None:
        """Makes a cluster that is not started; creates no file.

        Args:
            name: the cluster's name.
            data_dir: directory of data, log and ports; `start` makes it if it is missing.
            port: port for clients; by default the directory's former port, or a free one.
            heap: the JVM's heap.
            fast_start: whether to start faster, at the cost of requests per second.
            listeners: listeners with TLS or SASL, in addition to the plain one.
            properties: further properties of the broker, such as an authorizer.
        """
        self.name = name
        self._dir = BrokerDir(data_dir)
        self.log_path = self._dir.log_path
        self._port = port
        self._heap = heap
        self._listeners = listeners
        self._properties = properties
        self._jvm_flags = FAST_START if fast_start else ()
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients; available from the first start on."""
        record = self._dir.read_record()
        if record is None:
            raise BrokerDownError(f"cluster {self.name} was never started", hint="call start()")
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

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the broker and returns when it answers; does nothing if it runs already.

        Raises:
            JavaMissingError, JarsError, PortTakenError, DataDirInUseError: as in `errors`.
            BrokerStartError: the broker ended or gave no answer in time; quotes its log.
        """
        if self.is_running:
            return
        self._release()
        held = self._dir.hold()
        try:
            launch = self._dir.prepare(
                self.name,
                port=self._port,
                heap=self._heap,
                jvm_flags=self._jvm_flags,
                listeners=self._listeners,
                properties=self._properties,
            )
            log_begin = self._dir.log_size
            self._process = _spawn(launch, held)
        finally:
            os.close(held)
        try:
            self._pid = int(_pipe(self._process.stdout).readline() or 0)
            self._dir.write_record(replace(launch.record, pid=self._pid))
            await_ready(self._dir, self._process.poll, log_begin=log_begin, timeout_s=timeout_s)
        except BaseException:
            self._end(signal.SIGKILL)
            raise

    def stop(self) -> None:
        """Shuts the broker down by SIGTERM, after 20 s by SIGKILL. Safe when it is down."""
        if self.is_running:
            self._send(signal.SIGCONT)
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the JVM with SIGKILL and returns when it is gone. Safe when it is down."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freezes the JVM (SIGSTOP): connections stay open, nothing answers."""
        self._running()
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues a frozen JVM (SIGCONT)."""
        self._running()
        self._send(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> None:
        if not self.is_running:
            raise BrokerDownError(
                f"the broker of cluster {self.name} does not run",
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

    def _end(self, number: signal.Signals) -> None:
        if self.is_running:
            assert self._process is not None
            self._send(number)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                self._process.wait()
        self._release()

    def _release(self) -> None:
        if self._process is not None:
            _pipe(self._process.stdin).close()
            _pipe(self._process.stdout).close()
        self._process = None


def _spawn(launch: Launch, held: int) -> "subprocess.Popen[bytes]":
    with launch.log_path.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - arguments are ours
            [sys.executable, "-I", "-S", str(watchdog.__file__), *launch.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            pass_fds=(held,),
            # Its own session, so that Ctrl-C reaches only the owner, which shuts the broker down.
            start_new_session=True,
        )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
