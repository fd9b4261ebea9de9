"""A program as a child process of a test: its output, its signals, and its end in any case."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from stilltide.pipeline.demo.worker_process import end_with_this_process

ROOT = Path(__file__).parents[3]

START_S = 360.0
END_S = 270.0


def command_of(pid: int) -> list[str]:
    """The program and arguments of a process; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except FileNotFoundError:
        return []


class Held(NamedTuple):
    """The resources that a process uses."""

    rss_kib: int
    threads: int
    descriptors: int


class Child:
    """Runs from entry to exit at the latest; `spawn` starts the program again after an end.

    Args:
        command: the program and its arguments.
        log_path: file to which stderr is appended; None: the stderr of the tests.
        variables: environment variables, in addition to those of the tests.
    """

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.log_path = log_path
        self._command = command
        self._variables = variables or {}
        self._process: Process | None = None
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    def of_module(cls, module: str, *arguments: str, log_path: Path | None = None) -> "Child":
        """`python -m MODULE ARGUMENTS`."""
        return Child([sys.executable, "-m", module, *arguments], log_path)

    async def __aenter__(self) -> Self:
        await self.spawn()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    @property
    def pid(self) -> int:
        """The process id, once the program was started."""
        return self._started.pid

    @property
    def running(self) -> bool:
        """Whether the program has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """The exit code after the end; minus the signal's number if a signal ended the program."""
        return None if self._process is None else self._process.returncode

    @property
    def said(self) -> str:
        """The content of the log: stderr so far, also of earlier children with the same log."""
        assert self.log_path is not None
        return self.log_path.read_text()

    def processes(self) -> list[int]:
        """The processes of a command with `--processes`, without its reaper."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        pids = [int(it) for task in tasks for it in (task / "children").read_text().split()]
        return [it for it in pids if command_of(it)[1:3] == ["-m", "stilltide"]]

    def held(self) -> Held:
        """The resources that the process uses now."""
        proc = Path("/proc") / str(self.pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return Held(
            rss_kib=int(status["VmRSS"].split()[0]),
            threads=int(status["Threads"]),
            descriptors=len(list((proc / "fd").iterdir())),
        )

    async def spawn(self) -> None:
        """Starts the program without waiting for its output."""
        log = None if self.log_path is None else self.log_path.open("ab")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                env={**os.environ, **self._variables},
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches only the tests, which end the child
            )
            end_with_this_process(self._process.pid)
        finally:
            if log is not None:
                log.close()

    async def start(self, heard: Callable[[str], None]) -> None:
        """Starts the program and waits for its first line; `heard` is called with each line."""
        await self.spawn()
        first = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(heard, first))
        async with asyncio.timeout(START_S):
            await first.wait()

    async def line(self) -> str:
        """The next line of stdout; empty at its end."""
        assert self._started.stdout is not None
        line = await self._started.stdout.readline()
        whole = line.endswith(b"\n")  # a SIGKILL in the middle of a line cuts the line off
        return line.decode().strip() if whole else ""

    async def announced(self, within_s: float = START_S) -> dict[str, Any]:
        """The JSON object that a serving program prints first; fails if there is none."""
        async with asyncio.timeout(within_s):
            line = await self.line()
        assert line, f"ended before it served: {self.said if self.log_path else self._command}"
        return json.loads(line)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self._started.send_signal(number)

    def pause(self) -> None:
        """Sends SIGSTOP: the program keeps its connections open and does nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Sends SIGCONT: the program goes on."""
        self.send(signal.SIGCONT)

    def terminate(self) -> None:
        """Sends SIGTERM: the program may end cleanly."""
        self.send(signal.SIGTERM)

    async def ended(self, within_s: float | None = END_S) -> int:
        """Waits until the program has ended and `heard` has every line; returns the exit code.

        Args:
            within_s: time after which the call fails; None: no limit.
        """
        async with asyncio.timeout(within_s):
            code = await self._started.wait()
            if self._listening is not None:
                await self._listening
        return code

    async def stop(self) -> int:
        """Sends SIGTERM and waits for the end; returns the exit code."""
        self.terminate()
        return await self.ended()

    async def kill(self) -> None:
        """Sends SIGKILL and waits for the end. Does nothing if no program was started."""
        if self._process is not None:
            if self.running:
                self._process.kill()
            await self.ended()

    @property
    def _started(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    async def _listen(self, heard: Callable[[str], None], first: asyncio.Event) -> None:
        try:
            while line := await self.line():
                heard(line)
                first.set()
        finally:
            first.set()
