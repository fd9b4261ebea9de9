"""An asyncio loop with virtual time, whose callbacks belong to simulated processes.

*Invariants*: the selector never waits: time moves to the next timer as soon as nothing is ready, so
a run takes only processor time. Each turn takes a few virtual microseconds, so that a loop that
spins does not stand still in time. Callbacks of a process that is frozen wait; those of a process
that is dead never run, and neither does the clean-up of its tasks.
"""

import asyncio
import selectors
import signal
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from tests.simulation.processes.process import PROCESS, Process

TURN_S = 2e-6
"""Virtual time that a turn of the loop takes."""

YIELDS_S = 10.0
"""Processor time after which a callback that does not yield is ended."""

TURNS_MAX = 3_000_000
"""Turns of a run; a world that needs more spins."""


class DeadlockError(Exception):
    """Nothing is due, and the world is not done."""


class SpinError(BaseException):
    """The world takes too many turns, or a callback does not yield.

    Not an `Exception`, so that the code under test does not catch it.
    """


class _Selector(selectors.SelectSelector):
    """Moves the loop's time instead of waiting."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        self.loop.advance(timeout)
        return []


class _Ready(deque[asyncio.Handle]):
    """The callbacks that are due: those of frozen processes are put aside, dead ones dropped."""

    def append(self, handle: asyncio.Handle, /) -> None:
        process = _process_of(handle)
        if process is None or process.runs:
            super().append(handle)
        elif process.is_frozen:
            process.waiting.append(handle)

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        process = _process_of(handle)
        if process is None or process.runs:
            return handle
        if process.is_frozen:
            process.waiting.append(handle)
        return _NOTHING


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop of one world; see the module.

    Attributes:
        turns: the turns so far.
    """

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        self._virtual_s = 0.0
        self.turns = 0
        super().__init__(selector)
        self._ready = _Ready()
        self._clock_resolution = 1e-9
        self.set_task_factory(_make_task)

    def time(self) -> float:
        """Virtual seconds since the world began."""
        return self._virtual_s

    def advance(self, timeout: float | None) -> None:
        """Moves the time on by a turn, and by `timeout`; None: nothing is due, and never will be.

        Raises:
            DeadlockError: nothing is due.
            SpinError: too many turns were taken.
        """
        self.turns += 1
        if not self.turns % 256 and threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_VIRTUAL, YIELDS_S)
        if self.turns > TURNS_MAX:
            raise SpinError(f"{TURNS_MAX} turns by {self._virtual_s:.3f} s of virtual time")
        if timeout is None:
            raise DeadlockError(f"nothing is due at {self._virtual_s:.3f} s of virtual time")
        self._virtual_s += TURN_S + max(timeout, 0.0)

    @staticmethod
    def watched() -> None:
        """Ends a callback that does not yield, by `SpinError` with its place."""

        def ended(_number: int, _frame: Any) -> None:
            raise SpinError(f"a callback takes more than {YIELDS_S:.0f} s of processor time")

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGVTALRM, ended)

    def bury(self) -> None:
        """Ends the world: callbacks are forgotten, and nothing runs any more."""
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self.set_exception_handler(lambda *_: None)
        self._ready.clear()
        self._scheduled.clear()  # pyright: ignore[reportAttributeAccessIssue] - see above
        vars(self).update(dict.fromkeys(("call_soon", "call_later", "call_at"), _forget))

    def put(self, handles: "deque[asyncio.Handle]") -> None:
        """Makes callbacks due again that had waited for their process."""
        self._ready.extend(handles)
        handles.clear()


def stacks(tasks: Mapping[str, "asyncio.Task[Any]"]) -> str:
    """The place at which each task waits, a line for each."""
    lines: list[str] = []
    for name, task in tasks.items():
        frames = task.get_stack(limit=12)
        places = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames]
        lines.append(f"{name}: {' < '.join(reversed(places)) or 'has ended'}")
    return "\n".join(lines)


def _process_of(handle: asyncio.Handle) -> Process | None:
    return handle._context.get(PROCESS)  # pyright: ignore[reportAttributeAccessIssue]


def _make_task(
    loop: asyncio.AbstractEventLoop, work: Any, context: Any = None
) -> "asyncio.Task[Any]":
    """Makes a task that its process keeps: a task of a dead process must not be collected.

    A collected task runs its clean-up, at a moment that the garbage collector chooses.
    """
    task = asyncio.Task(work, loop=loop, context=context)
    process = (PROCESS.get() if context is None else context.get(PROCESS)) or None
    if process is not None:
        process.keep(task)
    return task


def _forget(*_: Any, **__: Any) -> asyncio.Handle:
    """Takes the place of calls that would make something due in a world that has ended."""
    return _NOTHING


def _nothing() -> asyncio.Handle:
    loop = asyncio.new_event_loop()
    try:
        handle = asyncio.Handle(_nothing, (), loop)
    finally:
        loop.close()
    handle.cancel()
    return handle


_NOTHING = _nothing()
"""A callback that does nothing, for the turn in which a callback was put aside."""
