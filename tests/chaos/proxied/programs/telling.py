"""What a program does, told line by line to a file that outlives the program's SIGKILL.

Each line is a JSON object: `at_ns` (`time.monotonic_ns`, one clock for all processes of a machine),
`what`, and more. A line is one write to the system, so a process that is killed has told all that
it has done.
"""

import asyncio
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any


@dataclass(frozen=True)
class Role:
    """What a process is told at its start.

    Attributes:
        name: of the program, such as `writer-1`.
        run: number of the process among those of the program.
        seed: of the scenario.
        cluster: name of the cluster that the program uses.
        bootstrap: addresses of the cluster's proxies.
        path: file of the history.
        group: the group of a member.
        mode: how a member says what it has read: `positions` or `acknowledgements`.
        direct_line: whether a writer asks coordinators by direct lines.
    """

    name: str
    run: int
    seed: int
    cluster: str
    bootstrap: str
    path: str
    group: str = ""
    mode: str = ""
    direct_line: bool = False

    @classmethod
    def of(cls, text: str) -> "Role":
        """The role that `text` has written."""
        return cls(**json.loads(text))

    @property
    def text(self) -> str:
        """The role as an argument of a command."""
        return json.dumps(asdict(self))

    @property
    def random(self) -> Random:
        """The choices of this process."""
        return Random(f"{self.seed} {self.name} {self.run}")


class Telling:
    """Appends lines to a file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def tell(self, what: str, **fields: Any) -> None:
        """One line; `at_ns` is now unless it is among the fields."""
        line = json.dumps({"at_ns": time.monotonic_ns(), "what": what} | fields)
        os.write(self._file, line.encode() + b"\n")


class Stop:
    """Set by SIGTERM; to be made on the event loop."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._asked.set)

    @property
    def asked(self) -> bool:
        """Whether the process is to end."""
        return self._asked.is_set()

    async def pause(self, longest_s: float) -> None:
        """Waits so long, or until the process is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self._asked.wait()
