"""Forks applications, resolvers and workers that have everything imported: a start costs little.

`python -m tests.chaos.prepared.programs.herd FOLDER BOOTSTRAP DATABASE TOPIC...`. Commands come by
the campaign's socket, `ROLE NAME`; each fork and each end is told, `forked NAME PID` and
`ended NAME CODE`. Output of the processes is in files of the folder. They end with this process.
"""

import asyncio
import ctypes
import os
import select
import signal
import socket
import sys
from pathlib import Path

import stilltide.pipeline.cli.main
import stilltide.pipeline.cli.txn
import stilltide.pipeline.cli.worker
from stilltide.connectors.databases import table  # noqa: F401 - forks have imported what commands import
from stilltide.pipeline.logging import configure_logging
from tests.chaos.prepared.points import (
    SOCKET,
    Hooks,
    hook_application,
    hook_resolver,
    hook_worker,
)
from tests.chaos.prepared.programs import application
from tests.chaos.prepared.programs.losses import break_rule

PR_SET_PDEATHSIG = 1
RESOLVE_AFTER_S = 1.0


def become(role: str, name: str, place: application.Place) -> None:
    """What a fork is."""
    hooks = Hooks(place.folder, role)
    break_rule(os.environ.get("ABLATE", ""))
    if role == "application":
        hook_application(hooks)
        configure_logging("warning", "text")
        if hash_of(name) % 4 == 0:
            application.run_blocking(place, name, hooks)
        else:
            asyncio.run(application.run(place, name, hooks))
    elif role == "resolver":
        hook_resolver(hooks)
        after = ("--follow", "--after-s", f"{RESOLVE_AFTER_S * (hash_of(name) % 3) / 2:g}")
        decider = ("--decider", f"{application.DECIDER}={place.database}")
        command("txn", "resolve", *after, *decider, "--bootstrap-servers", place.bootstrap)
    else:
        hook_worker(hooks)
        os.environ["STILLTIDE_DECIDERS"] = f"{application.DECIDER}={place.database}"
        os.environ["STILLTIDE_RESOLVE_AFTER_MS"] = f"{RESOLVE_AFTER_S * 1000:.0f}"
        os.environ["STILLTIDE_BROKER_AWAY_S_MAX"] = "300"
        static = ("--instance-id", name.partition(".")[0], "--web-port", "0")
        command("worker", "--bootstrap-servers", place.bootstrap, *static)


def hash_of(name: str) -> int:
    """The number in a name, the same in each run."""
    return sum(map(ord, name))


def command(*arguments: str) -> None:
    """Runs `stilltide`; ends the process as it ends."""
    code = stilltide.pipeline.cli.main.run(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fork(role: str, name: str, place: application.Place) -> int:
    """Starts a process; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    log = os.open(place.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for number in (1, 2):
        os.dup2(log, number)
    try:
        become(role, name, place)
    except BaseException:  # noqa: BLE001 - a fork never returns
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def serve(place: application.Place) -> None:
    """Carries out commands until the campaign closes the socket."""
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    names: dict[int, str] = {}
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(place.folder / SOCKET))
        line.sendall(b"herd\n")
        commands = b""
        while True:
            ready, _, _ = select.select([line, woken], [], [])
            if woken in ready:
                woken.recv(4096)
                while ended := _ended(names):
                    line.sendall(ended.encode())
            if line not in ready:
                continue
            received = line.recv(4096)
            if not received:
                return
            *whole, commands = (commands + received).split(b"\n")
            for text in whole:
                role, name = text.decode().split()
                pid = fork(role, name, place)
                names[pid] = name
                line.sendall(f"forked {name} {pid}\n".encode())


def _ended(names: dict[int, str]) -> str:
    """The line about a process that has ended; empty: none has."""
    if not names:
        return ""
    pid, status = os.waitpid(-1, os.WNOHANG)
    return f"ended {names.pop(pid)} {os.waitstatus_to_exitcode(status)}\n" if pid else ""


if __name__ == "__main__":
    folder, bootstrap, database, *topics = sys.argv[1:]
    serve(application.Place(bootstrap, database, topics, Path(folder)))
