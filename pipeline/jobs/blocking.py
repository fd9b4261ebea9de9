"""Runs coroutines for callers that are none, also where a loop runs already, as in a notebook."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it runs on a loop of its own, in a thread of its own."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="blocking") as threads:
        return threads.submit(asyncio.run, work).result()
