"""The wait of a command that follows, between two of its runs.

*Invariants*: the end of Spark's JVM ends the wait. Nothing else uses the JVM meanwhile: without
being asked it could be dead for days.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stilltide.connectors.errors import FatalError

_LOOK_S = 1.0
"""How often the JVM is asked for a sign of life."""


async def until_next_run(stopped: asyncio.Event, every_s: float, check: Callable[[], None]) -> None:
    """Waits for `every_s` seconds, or until the command is stopped.

    Args:
        stopped: set when the command shall end.
        every_s: seconds from the end of a run to the begin of the next one.
        check: raises if the JVM has ended; blocks.

    Raises:
        FatalError: the JVM has ended, and the command was not stopped.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(every_s):
            while not stopped.is_set():
                await _look(stopped, check)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await stopped.wait()


async def _look(stopped: asyncio.Event, check: Callable[[], None]) -> None:
    try:
        await asyncio.to_thread(check)
    except FatalError:
        # A supervisor may send SIGTERM to this process and to the JVM alike.
        if not stopped.is_set():
            raise
