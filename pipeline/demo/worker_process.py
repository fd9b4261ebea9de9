"""A worker as a process of its own, to be killed and started again."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from schemas.errors import StilltideError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
INSTANCE_ID = "demo-worker"


class WorkerError(StilltideError):
    """The worker process did not come up, or ended by itself."""


class WorkerProcess:
    """`stilltide worker` as a child process; its talk goes to `log_path`."""

    def __init__(self, bootstrap_servers: str, log_path: Path) -> None:
        self.log_path = log_path
        self._bootstrap_servers = bootstrap_servers
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """Its process id, once started."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Starts it and waits until it serves every coordinator.

        Raises:
            WorkerError: it ended, or did not serve in time; names its log.
        """
        with self.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "pipeline.cli", "worker"),
                *("--bootstrap-servers", self._bootstrap_servers),
                *("--instance-id", INSTANCE_ID),
                *("--web-port", "0"),  # nobody asks, and another worker may run here
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which stops it in order
            )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await self._process.stdout.readline()
        except TimeoutError as error:
            raise self._failed(f"did not serve within {START_TIMEOUT_S:g} s") from error
        if not line or json.loads(line).get("event") != "serving":
            raise self._failed("ended before it served")

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def wait(self) -> None:
        """Waits until it is gone."""
        if self._process is not None:
            await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL when it does not end in time."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def _failed(self, what: str) -> WorkerError:
        last = self.log_path.read_text(errors="replace").splitlines()[-5:]
        return WorkerError(
            f"the worker {what}", detail="\n    ".join(last), hint=f"its log is {self.log_path}"
        )
