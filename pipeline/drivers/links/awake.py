"""The time for which a process was awake: time in which the process was frozen does not count.

*Source*: docs/protocols H2. A link whose transaction has timed out while its cluster was away may
begin again. A link that was frozen for as long may have been replaced, and must end.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

TICK_S = 0.5


async def within_awake(answer: Awaitable[T], seconds: float) -> T:
    """The answer; raises `TimeoutError` if it does not come while the process is awake so long.

    A process that was frozen reads the answers that came meanwhile before the time is over.
    """
    asked = asyncio.ensure_future(answer)
    try:
        for _ in range(max(1, round(seconds / TICK_S))):
            done, _waiting = await asyncio.wait([asked], timeout=TICK_S)
            if done:
                return await asked
    finally:
        asked.cancel()
    raise TimeoutError


BUSY_S = 2.0
"""A tick that comes up to so late is that of a busy machine; a later one, that of a freeze."""


class AwakeTime:
    """Counts seconds from `begin` to `end`; a longer freeze of the process counts as one tick."""

    def __init__(self) -> None:
        self._counted_s = self._ticked_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds awake since `begin`; 0 after `end`."""
        return 0.0 if self._timer is None else self._counted_s + self._since_tick_s()

    def begin(self) -> None:
        """Counts from 0."""
        self.end()
        self._counted_s = 0.0
        self._wait()

    def end(self) -> None:
        """Counts no more. Safe to call twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticked_s = loop.time()
        self._timer = loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._counted_s += self._since_tick_s()
        self._wait()

    def _since_tick_s(self) -> float:
        passed_s = asyncio.get_running_loop().time() - self._ticked_s
        return passed_s if passed_s <= TICK_S + BUSY_S else TICK_S
