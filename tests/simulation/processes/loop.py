"""An asyncio loop with virtual time, whose callbacks belong to simulated processes.

*Invariants*: the loop never waits: time moves to the next timer as soon as nothing is ready, so a
run takes only processor time. Each callback takes a few virtual microseconds, so that a loop that
spins does not stand still in time. Callbacks of a process that is frozen wait; those of a process
that is dead never run, and neither does the clean-up of its tasks. What is due at one time runs in
the order in which the calls were made.
"""

import asyncio
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from types import FrameType
from typing import Any

from tests.simulation.processes.process import EVERYWHERE, NOBODY, PROCESS, Process

CALLBACK_S = 2e-6
"""Virtual time that a callback takes."""

YIELDS_S = 10.0
"""Processor time after which a callback that does not yield is ended."""

CALLBACKS_MAX = 3_000_000
"""Callbacks of a run; a world that needs more spins."""

_LOOKED_AT = 255
"""The loop looks whether it spins after so many callbacks."""


class DeadlockError(Exception):
    """Nothing is due, and the world is not done."""


class SpinError(BaseException):
    """The world takes too many callbacks, or a callback does not yield.

    Not an `Exception`, so that the code under test does not catch it.
    """


class Handle(list[Any]):
    """A callback that is due, or will be; takes the place of asyncio's handles.

    A list, which is made and compared without a frame of Python: time and number, by which timers
    are ordered, callback, arguments, context, process. The callback of a cancelled handle is None.
    """

    __slots__ = ()

    def cancel(self) -> None:
        """Forgets the callback; safe to call twice."""
        self[2], self[3] = None, ()

    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self[2] is None

    def when(self) -> float:
        """The virtual time at which the callback is due."""
        return self[0]


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number in the world, so that sets of tasks have one order.

    A task group cancels its tasks in the order of a set.

    Attributes:
        number: the number, which is set right after the task was made.
    """

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop of one world; see the module.

    Attributes:
        now_s: virtual seconds since the world began.
        turns: the callbacks so far.
        streams: connections between processes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.turns = 0
        self.streams: Any = None
        self._due: deque[Handle] = deque()
        self._timers: list[Handle] = []
        self._number = 0
        self._failure: BaseException | None = None
        self._ends = False
        self._tasks_made = 0
        # Without frames of Python, since most futures of a run are made by these.
        vars(self).update(create_future=partial(asyncio.Future, loop=self), get_debug=bool)

    def time(self) -> float:
        """Virtual seconds since the world began."""
        return self.now_s

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """Has a callback run after those that are due already."""
        if context is None:
            context = copy_context()
        handle = Handle((0.0, 0, callback, args, context, context.get(PROCESS, NOBODY)))
        self._due.append(handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """Has a callback run after so many virtual seconds."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """Has a callback run at a virtual time."""
        if context is None:
            context = copy_context()
        number = self._number = self._number + 1
        process = context.get(PROCESS, NOBODY)
        handle = Handle((when, number, callback, args, context, process))
        heappush(self._timers, handle)
        return handle

    def call_for(
        self, process: Process, when: float, callback: Callable[..., Any], args: tuple[Any, ...]
    ) -> None:
        """Has a callback of a process run at a virtual time; as `call_at`, which takes longer."""
        number = self._number = self._number + 1
        handle = Handle((when, number, callback, args, process.context, process))
        heappush(self._timers, handle)

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        """Makes a task that its process keeps: a task of a dead process must not be collected.

        A collected task runs its clean-up, at a moment that the garbage collector chooses.
        """
        task = NumberedTask(coro, loop=self, **options)
        task.number = self._tasks_made = self._tasks_made + 1
        context: Context | None = options.get("context")
        process = PROCESS.get(NOBODY) if context is None else context.get(PROCESS, NOBODY)
        process.keep(task)
        return task

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        """Has the present process listen."""
        return self.streams.listen(protocol_factory)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connects the present process to another one, whose name is the host."""
        return await self.streams.connect(protocol_factory, host, port)

    def stop(self) -> None:
        """Ends `run_forever` after this callback."""
        self._ends = True
        super().stop()

    def abort(self, failure: BaseException) -> None:
        """Ends the run by an error, whatever the code under test makes of that error."""
        self._failure = self._failure or failure
        self.stop()

    def _run_once(self) -> None:
        """Runs callbacks until the loop is to stop; takes the place of a turn of asyncio's loop.

        Raises:
            DeadlockError: nothing is due.
            SpinError: there were too many callbacks, or one did not yield.
        """
        due, timers, take, put = self._due, self._timers, self._due.popleft, self._due.append
        while not self._ends:
            while timers and (timers[0][0] <= self.now_s or not due):
                handle = heappop(timers)
                if handle[2] is not None:
                    self.now_s = max(self.now_s, handle[0])
                    put(handle)
            if not due:
                raise DeadlockError(f"nothing is due at {self.now_s:.3f} s of virtual time")
            handle = take()
            _, _, callback, args, context, process = handle
            if callback is None:
                continue
            if not process.runs:
                process.put_aside(handle)
                continue
            self.turns += 1
            self.now_s += CALLBACK_S
            if not self.turns & _LOOKED_AT:
                self._look()
            try:
                context.run(callback, *args)
            except BaseException as error:  # noqa: BLE001 - as asyncio's handles do
                self._failed(callback, error)
        self._ends = False
        if self._failure is not None:
            raise self._failure

    def _failed(self, callback: Callable[..., Any], error: BaseException) -> None:
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        text = f"Exception in callback {callback!r}"
        self.call_exception_handler({"message": text, "exception": error})

    def _look(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_VIRTUAL, YIELDS_S, 1.0)
        if self.turns > CALLBACKS_MAX:
            raise SpinError(f"{CALLBACKS_MAX} callbacks by {self.now_s:.3f} s of virtual time")

    def watched(self) -> None:
        """Ends a callback that does not yield, by `SpinError` with its stack."""

        def ended(_number: int, frame: FrameType | None) -> None:
            stack = "".join(traceback.format_stack(frame, limit=12))
            text = f"a callback takes more than {YIELDS_S:g} s of processor time"
            error = SpinError(f"{text} at {self.now_s:.3f} s of virtual time:\n{stack}")
            self.abort(error)
            raise error

        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGVTALRM, ended)

    def bury(self) -> None:
        """Ends the world: callbacks are forgotten, and nothing runs any more."""
        if threading.current_thread() is threading.main_thread():
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, signal.SIG_DFL)  # the handler holds the world
        self.set_exception_handler(lambda *_: None)
        self._due.clear()
        self._timers.clear()
        calls = ("call_soon", "call_soon_threadsafe", "call_later", "call_at")
        vars(self).update(dict.fromkeys(calls, _forget))

    def put(self, handles: deque[Any]) -> None:
        """Makes callbacks due again that had waited for their process."""
        self._due.extend(handles)
        handles.clear()


def stacks(tasks: Mapping[str, "asyncio.Task[Any]"]) -> str:
    """The place at which each task waits, a line for each."""
    lines: list[str] = []
    for name, task in tasks.items():
        frames = task.get_stack(limit=12)
        places = [f"{frame.f_code.co_filename}:{frame.f_lineno}" for frame in frames]
        lines.append(f"{name}: {' < '.join(reversed(places)) or 'has ended'}")
    return "\n".join(lines)


def _forget(*_: Any, **__: Any) -> Any:
    """Takes the place of calls that would make something due in a world that has ended."""
    return _NOTHING


_NOTHING = Handle((0.0, 0, None, (), EVERYWHERE, NOBODY))
