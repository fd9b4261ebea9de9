"""Runs coroutines for blocking callers, also where a loop runs already, as in a notebook."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

T = TypeVar("T")


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
