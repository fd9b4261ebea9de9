"""Runs coroutines for threads without an event loop, on one event loop of the process.

*Source*: docs/services.md. All clients and subscriptions of a process share the loop, so that a
transaction can acknowledge the messages of any subscription.

*Invariants*: a call that is interrupted, for example by Ctrl-C, cancels its coroutine. A process
that was forked gets a loop of its own, and no object of its parent works there.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from stilltide.pipeline.client.usage import check_process
from stilltide.pipeline.errors import UsageError

T = TypeVar("T")


class LoopThread:
    """An event loop on a daemon thread, which ends with the process."""

    _of_process: ClassVar["LoopThread | None"] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self.loop.run_forever, name="stilltide-sync", daemon=True
        )
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread."""
        return threading.current_thread() is self._thread

    @classmethod
    def of_process(cls) -> "LoopThread":
        """The loop that all clients of this process share; started by the first call."""
        with cls._lock:
            if cls._of_process is None:
                cls._of_process = cls()
            return cls._of_process

    @classmethod
    def forked(cls) -> None:
        """This process is a fork: the thread stayed in the parent, and the lock may be held."""
        cls._of_process = None
        cls._lock = threading.Lock()


os.register_at_fork(after_in_child=LoopThread.forked)


class LoopCalls:
    """The calls of one object, from any thread, on the event loop of the process.

    Args:
        what: the object in errors, such as `client`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._thread = LoopThread.of_process()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end; returns what it returns, or raises what it raises.

        Raises:
            ForkedError: the object was opened before this process was forked.
            UsageError: the call is on the event loop itself, and would wait for ever.
        """
        try:
            self._check()
        except UsageError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, self._thread.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # without effect, unless the wait was interrupted
            raise

    def call(self, function: Callable[..., T], *arguments: object) -> T:
        """Calls a function on the event loop; else as `run`."""

        async def called() -> T:
            return function(*arguments)

        return self.run(called())

    def later(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function on the event loop, without waiting for it."""
        self._thread.loop.call_soon_threadsafe(function, *arguments)

    def _check(self) -> None:
        check_process(self._what, self._pid)
        if self._thread.is_current:
            raise UsageError(
                f"a {self._what} of `stilltide.sync` was used on its own event loop",
                hint="use the class of `stilltide` there, and await its calls",
            )
