"""Simulated processes: tasks that run, freeze and die together, with a clock of their own."""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from tests.simulation.processes.loop import NumberedTask, VirtualLoop

EPOCH_MS = 1_700_000_000_000
"""Wall time, milliseconds since 1970, at which every world begins."""


class Process:
    """One run of a program, from its start to its end or death.

    A kill is that of SIGKILL: from one moment on nothing of the process runs, also no clean-up.
    What the process has sent stays on its way.

    Attributes:
        name: the name of the process, with the number of its run.
        runs: whether callbacks of the process run: the process is neither frozen nor dead.
        waiting: callbacks that are due while the process is frozen.
        skew_ms: how far the wall clock of the process is ahead of the world's.
        chance: chance of the process, which all its connections share: no two draw the same id.
        paths: its ways, by cluster.
        on_death: called once when the process dies; the network closes connections.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_frozen = False
        self.is_dead = False
        self.runs = True
        self.skew_ms = 0.0
        self.chance: ProcessChance | None = None
        self.waiting: deque[Any] = deque()
        self.paths: dict[str, Any] = {}
        self.on_death: list[Callable[[], None]] = []
        self._tasks: dict[int, NumberedTask] = {}
        self._look_at = 100
        self.context = copy_context()
        self.context.run(PROCESS.set, self)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs `work` as the main task of the process."""
        return asyncio.get_running_loop().create_task(work, name=self.name, context=self.context)

    def keep(self, task: "NumberedTask") -> None:
        """Holds a task until the task has ended."""
        if len(self._tasks) >= self._look_at:  # cheaper than a callback of each task
            self._tasks = {number: it for number, it in self._tasks.items() if not it.done()}
            self._look_at = 2 * len(self._tasks) + 100
        self._tasks[task.number] = task

    def kill(self) -> None:
        """Ends the process at once."""
        if not self.is_dead:
            self.is_dead, self.is_frozen, self.runs = True, False, False
            self.waiting.clear()
            for call in self.on_death:
                call()

    def freeze(self) -> None:
        """Stops every callback until `thaw`, as SIGSTOP does."""
        if not self.is_dead:
            self.is_frozen, self.runs = True, False

    def thaw(self) -> None:
        """Lets the process go on: what was due meanwhile runs now."""
        if self.is_frozen:
            self.is_frozen, self.runs = False, True
            cast("VirtualLoop", asyncio.get_running_loop()).put(self.waiting)

    def put_aside(self, handle: Any) -> None:
        """Takes a callback that is due while the process does not run."""
        if self.is_frozen:
            self.waiting.append(handle)

    def call(self, work: Callable[..., None], *args: Any) -> None:
        """Runs a call in the process, in a later turn, if the process lives then."""
        asyncio.get_running_loop().call_soon(work, *args, context=self.context)

    @property
    def tasks(self) -> list["asyncio.Task[Any]"]:
        """The tasks that have not ended."""
        running = (it for it in self._tasks.values() if not it.done())
        return sorted(running, key=lambda task: task.get_name())


class Nobody(Process):
    """The network, the brokers and the world itself, which always run."""

    def keep(self, task: "NumberedTask") -> None:
        """Holds nothing: what makes the task holds the task."""


PROCESS: ContextVar[Process] = ContextVar("PROCESS")
"""The process that a callback belongs to."""

NOBODY = Nobody("nobody")
"""What a callback belongs to outside of all processes."""

EVERYWHERE = copy_context()
"""The context of what is no process."""


class ProcessClock:
    """`Clock` of one process: the world's time, and its wall time with the skew of the process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._loop = cast("VirtualLoop", asyncio.get_running_loop())

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return round(EPOCH_MS + self._process.skew_ms) + int(self._loop.now_s * 1000)

    def monotonic_ms(self) -> int:
        """Virtual milliseconds since the world began."""
        return int(self._loop.now_s * 1000)


class ProcessChance:
    """`Chance` of one process, drawn from the seed of the world."""

    def __init__(self, process: Process, seed: int) -> None:
        self._random = random.Random(f"chance of {process.name} {seed}")

    def token(self, byte_count: int) -> bytes:
        """Bytes that no other call returns."""
        return self._random.randbytes(byte_count)

    def between(self, low: float, high: float) -> float:
        """A number in `[low, high]`."""
        return self._random.uniform(low, high)
