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
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from stilltide.connectors.local.broker import BrokerDir
from stilltide.connectors.local.errors import BrokerDownError, PortTakenError
from stilltide.connectors.local.readiness import POLL_S, STOP_TIMEOUT_S, await_ready

NAMES = ("a", "b", "c")
"""Names of local clusters."""


class ClusterStatus(NamedTuple):
    """A cluster below a root directory; `pid` is None if the broker is stopped or just starting."""

    name: str
    state: str
    bootstrap: str
    pid: int | None
    log: str
    data_dir: str


def up(name: str, root: Path, *, port: int | None = None, heap: str = "256m") -> bool:
    """Starts cluster `name` and returns when it answers; False if it ran already.

    Args:
        name: one of `NAMES`; the cluster's data is in `root/name`.
        root: the directory of all clusters.
        port: port for clients; by default the cluster's former port, or a free one.
        heap: the JVM's heap.

    Raises:
        PortTakenError: the port is in use, or the cluster runs on another one.
        JavaMissingError, JarsError, DataDirInUseError, BrokerStartError: as in `errors`.
    """
    directory = BrokerDir(root / name)
    if directory.is_held() and (record := directory.read_record()):
        if port not in (None, record.port):
            raise PortTakenError(
                f"cluster {name} runs already, at {record.bootstrap} and not on port {port}",
                hint="stop the cluster first: stilltide local down",
            )
        await_ready(
            directory,
            lambda: None if directory.is_held() else 1,
            log_begin=directory.log_size,
        )
        return False
    _start(directory, name, port, heap)
    return True


def status(root: Path) -> list[ClusterStatus]:
    """The clusters that have data below `root`, by name."""
    found: list[ClusterStatus] = []
    for name in NAMES:
        directory = BrokerDir(root / name)
        if record := directory.read_record():
            running = directory.is_held()
            found.append(
                ClusterStatus(
                    name=name,
                    state="running" if running else "stopped",
                    bootstrap=record.bootstrap,
                    pid=(record.pid or None) if running else None,
                    log=str(directory.log_path),
                    data_dir=str(directory.path),
                )
            )
    return found


def down(root: Path, *, wipe: bool = False) -> list[str]:
    """Stops every cluster below `root`; returns the names of those that ran.

    Args:
        root: the directory of all clusters.
        wipe: whether to delete data and logs, too.

    Raises:
        BrokerDownError: a broker is just starting, so that its process id is not known yet.
    """
    present = [each.name for each in status(root)]
    stopped = [name for name in present if _stop(BrokerDir(root / name))]
    if wipe:
        _wipe([BrokerDir(root / name) for name in present])
    return stopped


def _start(directory: BrokerDir, name: str, port: int | None, heap: str) -> None:
    held = directory.hold()
    try:
        launch = directory.prepare(name, port=port, heap=heap, jvm_flags=())
        log_begin = directory.log_size
        with launch.log_path.open("ab") as log:
            broker = subprocess.Popen(  # noqa: S603 - arguments are ours
                launch.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(held,),
                # Its own session, so that it outlives the terminal.
                start_new_session=True,
            )
    finally:
        os.close(held)
    try:
        directory.write_record(replace(launch.record, pid=broker.pid))
        await_ready(directory, broker.poll, log_begin=log_begin)
    except BaseException:
        broker.kill()
        broker.wait()
        raise


def _stop(directory: BrokerDir) -> bool:
    if not directory.is_held():
        return False
    record = directory.read_record()
    if record is None or not record.pid:
        raise BrokerDownError(
            f"the cluster in {directory.path} is just starting",
            hint="try again once it has started",
        )
    os.kill(record.pid, signal.SIGTERM)
    if not _is_released(directory, STOP_TIMEOUT_S):
        os.kill(record.pid, signal.SIGKILL)
        _is_released(directory, STOP_TIMEOUT_S)
    return True


def _is_released(directory: BrokerDir, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while directory.is_held():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _wipe(directories: Sequence[BrokerDir]) -> None:
    for directory in directories:
        held = directory.hold()
        try:
            shutil.rmtree(directory.path)
        finally:
            os.close(held)
