"""Runs coroutines for blocking callers, also where a loop runs already, as in a notebook.

Says what a blocking call waits for, if it waits for long.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

T = TypeVar("T")

SLOW_S = 5.0
"""Seconds after which a step of a blocking call is said."""


class SlowSteps:
    """Says each step of a blocking call that takes long; other steps are not said.

    Args:
        say: called with the line of a step, on a thread of its own.
        slow_s: seconds after which a step is said, > 0.
    """

    def __init__(self, say: Callable[[str], None], slow_s: float = SLOW_S) -> None:
        self._say = say
        self._slow_s = slow_s
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.done()

    def done(self) -> None:
        """Ends the last step."""
        if self._timer is not None:
            self._timer.cancel()

    def step(self, text: str) -> None:
        """Begins a step, which ends with the next one, with `done`, or with the block."""
        self.done()
        self._timer = threading.Timer(self._slow_s, self._say, [text])
        self._timer.daemon = True
        self._timer.start()

    def note(self, text: str) -> None:
        """Begins a part of a step."""
        self.step(text)

    def share(self, done: float) -> None:
        """Shows nothing."""


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, run on a new event loop in a new thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocking") as threads:
        return threads.submit(asyncio.run, work).result()


class BlockingLoop:
    """One event loop in a thread of its own, for clients that stay open between blocking calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="blocking-loop", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`; to be called from any other thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
