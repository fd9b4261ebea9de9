"""Several processes of one command on this machine, for `--processes`.

*Invariants*: SIGTERM and SIGINT reach every process. A process that a signal has killed is started
again; one that ends with an error has told it, and ends the others. None outlives this one.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import click

from stilltide.pipeline.drivers.shared.outages import Tries
from stilltide.pipeline.logging import get_logger
from stilltide.pipeline.reaper import end_with_this_process
from stilltide.schemas.retry import PROCESS_KILLED

_log = get_logger(__name__)

processes_option = click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes on this machine that share the work; the next one has the next --web-port.",
)
"""Option of commands that run until stopped, and that several processes share."""


def port_of(port: int | None, number: int) -> int | None:
    """The port of process `number`, from 0 on; 0 stays: each takes a free one."""
    return port + number if port else port


class OwnArguments(NamedTuple):
    """What one of several processes has of its own.

    Attributes:
        options: come behind the arguments of this process, and hold in their place: the last value
            of an option counts.
        environment: variables.
    """

    options: Sequence[str]
    environment: Mapping[str, str]


def run_processes(own: Sequence[OwnArguments]) -> None:
    """Runs this command in several processes until all have ended.

    Args:
        own: what each process has of its own.

    Raises:
        SystemExit: a process ended with an error; has its exit code.
    """
    code = asyncio.run(_Processes(own).run())
    if code:
        raise SystemExit(code)


class _Processes:
    def __init__(self, own: Sequence[OwnArguments]) -> None:
        self._own = own
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Runs all; returns the exit code of the first that ended with an error, or 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        codes = await asyncio.gather(*(self._keep(*it) for it in enumerate(self._own)))
        return next((code for code in codes if code), 0)

    def _stop(self) -> None:
        self._stopping.set()
        for process in self._running.values():
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)

    async def _keep(self, number: int, own: OwnArguments) -> int:
        """Runs one process, again after each kill; returns its exit code."""
        tries = Tries(PROCESS_KILLED)
        command = [sys.executable, "-m", "stilltide", *sys.argv[1:], *own.options]
        environment = {**os.environ, **own.environment}
        while not self._stopping.is_set():
            # In a session of its own, since Ctrl-C of a terminal reaches it from here alone.
            process = await asyncio.create_subprocess_exec(
                *command, env=environment, start_new_session=True
            )
            end_with_this_process(process.pid)
            self._running[number] = process
            code = await process.wait()
            if code >= 0:
                self._stop()  # it was told to, or says why it ends
                return code
            tries.failed()
            _log.warning(
                "process_killed", number=number, signal=signal.Signals(-code).name, pid=process.pid
            )
            await tries.pause(self._stopping)
        return 0
