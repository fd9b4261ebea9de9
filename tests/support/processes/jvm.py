"""The JVM that a process with a Spark session has started."""

import asyncio
import os
import signal
from pathlib import Path
from typing import NamedTuple

from tests.support.processes.child import Child

IDLE_S = 60


class Jvm(NamedTuple):
    """A JVM by its process id."""

    pid: int

    def kill(self) -> None:
        """Sends SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def jvm_of(pid: int) -> Jvm:
    """The JVM below a process; LookupError if there is none."""
    for child in _children(pid):
        if (Path("/proc") / str(child) / "comm").read_text().strip() == "java":
            return Jvm(child)
    raise LookupError(f"process {pid} has no JVM")


async def ends_with_its_jvm(child: Child) -> None:
    """A process with nothing to do hears of the end of its JVM; a supervisor starts it again."""
    jvm_of(child.pid).kill()
    async with asyncio.timeout(IDLE_S):
        assert await child.ended() == 1
    assert "error: spark's JVM has ended\n" in child.said


def _children(pid: int) -> list[int]:
    listed = (Path("/proc") / str(pid) / "task").glob("*/children")
    return [int(word) for path in listed for word in path.read_text().split()]
