"""A program as a child process of a test: its output, signals, and an end that is certain."""

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

ROOT = Path(__file__).parents[3]

START_S = 60.0
END_S = 90.0


class Held(NamedTuple):
    """What a process holds of the machine."""

    rss_kib: int
    threads: int
    descriptors: int


class Child:
    """Runs from entry to exit at the latest; `spawn` starts the program again after an end.

    Args:
        command: the program and its arguments.
        log_path: where its stderr goes, appended to; None: to the stderr of the tests.
        variables: of its environment, in addition to those of the tests.
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
        """Its process id, once started."""
        return self._started.pid

    @property
    def running(self) -> bool:
        """Whether the program has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def exit_code(self) -> int | None:
        """Of a program that has ended; minus the number of the signal that ended the program."""
        return None if self._process is None else self._process.returncode

    @property
    def said(self) -> str:
        """Its stderr so far, with that of children before it which had the same log."""
        assert self.log_path is not None
        return self.log_path.read_text()

    def held(self) -> Held:
        """What the process holds just now."""
        proc = Path("/proc") / str(self.pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        return Held(
            rss_kib=int(status["VmRSS"].split()[0]),
            threads=int(status["Threads"]),
            descriptors=len(list((proc / "fd").iterdir())),
        )

    async def spawn(self) -> None:
        """Starts the program and waits for nothing."""
        log = None if self.log_path is None else self.log_path.open("ab")
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                cwd=ROOT,
                env={**os.environ, **self._variables},
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the tests alone, which end the child
            )
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
        """SIGSTOP: the program holds its connections and does nothing."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def terminate(self) -> None:
        """SIGTERM: the program may end in good order."""
        self.send(signal.SIGTERM)

    async def ended(self, within_s: float | None = END_S) -> int:
        """Waits until the program has ended and `heard` has every line; its exit code.

        Args:
            within_s: fails after so long; None: waits without limit.
        """
        async with asyncio.timeout(within_s):
            code = await self._started.wait()
            if self._listening is not None:
                await self._listening
        return code

    async def stop(self) -> int:
        """SIGTERM, and waits for the end; its exit code."""
        self.terminate()
        return await self.ended()

    async def kill(self) -> None:
        """SIGKILL, and waits for the end. Does nothing when no program was started."""
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
