"""The time for which a process was awake: time in which the process was frozen does not count.

*Source*: docs/protocols H2. A link whose transaction has timed out while its cluster was away may
begin again. A link that was frozen for as long may have been replaced, and must end.
"""

import asyncio

TICK_S = 0.5


class AwakeTime:
    """Counts seconds from `begin` to `end`, tick by tick; a tick that comes late counts once."""

    def __init__(self) -> None:
        self._ticks = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def seconds(self) -> float:
        """Seconds awake since `begin`; 0 after `end`."""
        return self._ticks * TICK_S

    def begin(self) -> None:
        """Counts from 0."""
        self.end()
        self._wait()

    def end(self) -> None:
        """Counts no more. Safe to call twice."""
        self._ticks = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticks += 1
        self._wait()
