"""The tools of an operator: the command line, and the web site of a worker."""

import asyncio
import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from aiohttp import ClientSession

from tests.support.processes.local import run_stilltide
from tests.support.processes.worker_process import ModuleWorker, WorkerProcess


class Operator:
    """Runs commands against a broker.

    Args:
        bootstrap: the broker.
        directory: working directory of the commands.
    """

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._options = ("--bootstrap-servers", bootstrap)
        self._directory = directory

    async def run(self, command: str, *, code: int = 0) -> CompletedProcess[str]:
        """Runs a command line, which must end with this exit code."""
        words = [*command.split(), *self._options]
        done = await asyncio.to_thread(run_stilltide, *words, cwd=self._directory)
        assert done.returncode == code, done.stderr
        return done

    async def ask(self, command: str, *, code: int = 0) -> Any:
        """The JSON that a command prints, decoded."""
        return json.loads((await self.run(f"{command} -o json", code=code)).stdout)

    async def try_ask(self, command: str) -> Any:
        """The JSON that a command prints, decoded, whatever its exit code."""
        words = [*f"{command} -o json".split(), *self._options]
        done = await asyncio.to_thread(run_stilltide, *words, cwd=self._directory)
        return json.loads(done.stdout)


async def get(worker: WorkerProcess | ModuleWorker, path: str) -> tuple[int, str]:
    """Status and body of the worker's web site."""
    return await fetch(worker.web + path)


async def fetch(address: str) -> tuple[int, str]:
    """Status and body of a page."""
    async with ClientSession() as session, session.get(address) as response:
        return response.status, await response.text()
