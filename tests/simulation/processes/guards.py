"""Keeps real time, real chance, threads and the garbage collector out of a simulated world."""

import asyncio
import gc
import os
import random
import secrets
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.processes.loop import VirtualLoop

_SOURCES = {
    time: ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"),
    secrets: ("token_bytes", "token_hex", "token_urlsafe", "randbelow", "choice"),
    random: (
        *("random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle"),
        *("expovariate", "getrandbits", "randbytes"),
    ),
    os: ("urandom",),
    uuid: ("uuid1", "uuid4"),
}
"""Names by module that the code under test must not call; a tidy test keeps to them."""


class RealSourceError(BaseException):
    """The code under test asks for the real time, or for real chance, past its ports.

    Not an `Exception`, so that the code under test does not catch it.
    """


@contextmanager
def no_real_sources() -> Iterator[None]:
    """Ends a world whose code under test reaches for real time, real chance, or a thread."""
    with ExitStack() as stack:
        for owner, names in _SOURCES.items():
            for name in names:
                guarded = _guarded(getattr(owner, name), f"{owner.__name__}.{name}")
                stack.enter_context(patch.object(owner, name, guarded))
        stack.enter_context(patch.object(asyncio, "to_thread", _inline))
        # Nobody asks a world for all tasks, and to list each of them weakly takes time.
        all_tasks = vars(asyncio.tasks)["_all_tasks"]
        stack.enter_context(patch.object(all_tasks, "add", lambda _: None))
        yield


def _guarded(source: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1)
        if caller.f_globals.get("__name__", "").startswith("stilltide."):
            place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
            error = RealSourceError(f"{place} asks for {name}")
            loop = asyncio.get_running_loop()
            if isinstance(loop, VirtualLoop):
                loop.abort(error)
            raise error
        return source(*args, **kwargs)

    return call


async def _inline(work: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Takes the place of a thread: a simulated world has none."""
    await asyncio.sleep(0)
    return work(*args, **kwargs)


_frozen: list[int] = []
"""Whether this process has frozen what was there before its first world."""


@contextmanager
def no_clean_up() -> Iterator[None]:
    """What worlds within the block leave behind is collected after it, and has no say.

    What is there before the first world is never looked at again: that took a fifth of the time.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen.append(os.getpid())
    gc.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # coroutines that no task has begun
        try:
            yield
        finally:
            gc.enable()
            gc.collect()
            sys.unraisablehook = hook


@contextmanager
def new_loop() -> Iterator[VirtualLoop]:
    """A loop for one world."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    loop.watched()
    try:
        yield loop
    finally:
        loop.bury()
        asyncio.set_event_loop(None)
        loop.close()
