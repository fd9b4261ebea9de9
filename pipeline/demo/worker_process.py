"""A worker as a separate process, to be killed and started again."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping
from pathlib import Path

from stilltide.connectors.local.readiness import StartProgress
from stilltide.pipeline.reaper import end_with_this_process
from stilltide.schemas.errors import StilltideError

LOOK_S = 1.0
"""Seconds between two looks at the progress of a start."""

STOP_TIMEOUT_S = 15.0
STATIC_MEMBER = ("--instance-id", "demo-worker")
"""Options of a static member: restarted, it gets its partitions back without a session time-out."""


class WorkerError(StilltideError):
    """The worker process did not come up, or ended by itself."""


def command(bootstrap_servers: str, *options: str) -> list[str]:
    """The command line of a worker on a free web port, so that several workers may run."""
    worker = [sys.executable, "-m", "stilltide", "worker"]
    return [*worker, "--bootstrap-servers", bootstrap_servers, "--web-port", "0", *options]


class WorkerProcess:
    """`stilltide worker` as a child process.

    Attributes:
        log_path: file of the worker's stderr.
        web: address of the worker's metrics and probes, once it serves.

    Args:
        bootstrap_servers: the cluster's brokers.
        log_path: file to which the worker's stderr is appended.
        options: further options of the command.
        environment: variables in addition to those of this process.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        log_path: Path,
        *options: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = log_path
        self._command = command(bootstrap_servers, *options)
        self._environment = {**os.environ, **(environment or {})}
        self._process: Process | None = None
        self.web = ""

    @property
    def pid(self) -> int:
        """The worker's process id, once started."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts the worker and waits until it serves every coordinator.

        Raises:
            WorkerError: the worker ended, or made no progress; names its log.
        """
        await self.spawn()
        await self.serving()

    async def spawn(self) -> None:
        """Starts the worker without waiting."""
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the owner alone, which stops it in order
            )
        end_with_this_process(self._process.pid)

    async def serving(self) -> list[int]:
        """Waits until the worker serves; returns its coordinators.

        Raises:
            WorkerError: the worker ended, or made no progress; names its log.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        line = await self._first_line(self._process.stdout)
        event = json.loads(line) if line else {}
        if event.get("event") != "serving":
            raise self._failed("ended before it served")
        self.web = event["web"]
        return event["coordinators"]

    async def _first_line(self, stdout: asyncio.StreamReader) -> bytes:
        reading = asyncio.ensure_future(stdout.readline())
        progress = StartProgress([self.log_path], [self.pid])
        try:
            while not reading.done():
                if stalled := progress.stalled():
                    raise self._failed(f"did not serve: {stalled}")
                await asyncio.wait([reading], timeout=LOOK_S)
        finally:
            reading.cancel()
        return reading.result()

    async def kill(self) -> None:
        """Kills the worker by SIGKILL and returns when it is gone. Safe when it does not run."""
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()

    async def stop(self) -> None:
        """Stops the worker by SIGTERM, or by SIGKILL if it does not end in time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            await self.kill()

    def _failed(self, what: str) -> WorkerError:
        last = self.log_path.read_text(errors="replace").splitlines()[-5:]
        return WorkerError(
            f"the worker {what}", detail="\n    ".join(last), hint=f"its log is {self.log_path}"
        )
