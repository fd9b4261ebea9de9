"""Runs coroutines for blocking callers, also where a loop runs already, as in a notebook."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, run on a new event loop in a new thread."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocking") as threads:
        return threads.submit(asyncio.run, work).result()
