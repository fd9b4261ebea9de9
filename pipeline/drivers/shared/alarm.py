"""Arms the deadline of a machine on the asyncio loop.

*Source*: ARCHITECTURE.md, The machine contract, rule 3. *Invariants*: `due` is called at the
deadline or before it, never in the call of `arm`.
"""

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls a function at a deadline; made, and used, on a running event loop.

    Args:
        due: called at a deadline; ticks the machine and arms the next deadline.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0.0

    def arm(self, deadline_ms: float | None, now_ms: float) -> None:
        """Schedules a call of `due` at `deadline_ms`, unless an earlier call is scheduled already.

        A deadline that has passed is due after the other calls of this turn of the loop. None
        cancels no scheduled call, since a tick that comes too early does no harm.

        Args:
            deadline_ms: deadline of a machine, by any clock; None: no deadline.
            now_ms: the present time by the same clock.
        """
        if deadline_ms is None:
            return
        if deadline_ms <= now_ms:
            if self._soon is None:
                self._soon = self._loop.call_soon(self._soon_due)
        elif self._timer is None or deadline_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = deadline_ms
            self._timer = self._loop.call_later((deadline_ms - now_ms) / 1000, self._timer_due)

    def cancel(self) -> None:
        """Cancels every scheduled call; safe to call twice."""
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None

    def _soon_due(self) -> None:
        self._soon = None
        self._due()

    def _timer_due(self) -> None:
        self._timer = None
        self._due()
