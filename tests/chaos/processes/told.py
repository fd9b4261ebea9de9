"""A child process that tells on stdout, line by line, what it did; to be killed and paused."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path

from tests.support.processes.worker_process import Held, held_by

START_S = 60.0
END_S = 90.0


class Told:
    """`python -m MODULE ARGUMENTS` as a process; `heard` is called with each line it says."""

    def __init__(self, module: str, *arguments: str, log_path: Path) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._log_path = log_path
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None
        self._first = asyncio.Event()

    async def start(self, heard: Callable[[str], None]) -> None:
        """Starts it and waits for its first line."""
        with self._log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdout=PIPE, stderr=log, cwd=Path(__file__).parents[3]
            )
        self._listening = asyncio.create_task(self._listen(heard))
        async with asyncio.timeout(START_S):
            await self._first.wait()

    def send(self, number: signal.Signals) -> None:
        """A signal."""
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def ended(self) -> None:
        """Waits until it is gone and all it said was heard."""
        assert self._process is not None
        assert self._listening is not None
        async with asyncio.timeout(END_S):
            await self._process.wait()
            await self._listening

    async def kill(self) -> None:
        """SIGKILL."""
        self.send(signal.SIGKILL)
        await self.ended()

    @property
    def running(self) -> bool:
        """Whether it has been started and not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Of a process that has ended."""
        return None if self._process is None else self._process.returncode

    def held(self) -> Held:
        """What it holds just now."""
        assert self._process is not None
        return held_by(self._process.pid)

    async def _listen(self, heard: Callable[[str], None]) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # cut off by a SIGKILL: it was never said
            heard(line.decode().strip())
            self._first.set()
        self._first.set()
