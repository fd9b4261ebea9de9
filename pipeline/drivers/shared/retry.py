"""Tries one thing again and again on the event loop, at the distances that a `Retry` names.

*Source*: schemas/retry.py, which holds the distances.
"""

import asyncio

from stilltide.connectors.chance import Chance
from stilltide.schemas.retry import Retry


class Tries:
    """The tries of one thing; the first begins with the object, which a running loop makes.

        tries = Tries(OUTAGE)
        while True:
            try:
                return await attempt()
            except RetriableError:
                if tries.failed():
                    raise
            await tries.pause()

    Args:
        retry: the distances.
        chance: draws what is taken away of each wait; None: nothing.

    Attributes:
        failing_since_s: loop time of the first failure of the present row.
        due_s: loop time of the next try, as of the last failure.
    """

    def __init__(self, retry: Retry, chance: Chance | None = None) -> None:
        self.failing_since_s = self.due_s = 0.0
        self._retry = retry
        self._chance = chance
        self._failures = 0
        self._now_s = asyncio.get_running_loop().time
        self._began_s = self._now_s()
        self._row_began_s: float | None = None

    def failed(self) -> bool:
        """The present try has failed; whether the failure is final."""
        now_s, retry = self._now_s(), self._retry
        if now_s - self._began_s > retry.sound_s:
            self.succeeded()
        if self._row_began_s is None:
            self.failing_since_s, self._row_began_s = now_s, self._began_s
        self._failures += 1
        luck = 0.0 if self._chance is None else self._chance.between(0, 1)
        self.due_s = now_s + retry.wait_s(self._failures, luck)
        return now_s - self._row_began_s >= retry.give_up_s

    def succeeded(self) -> None:
        """The row of failures has ended."""
        self._failures, self._row_began_s = 0, None

    async def pause(self, woken: asyncio.Event | None = None) -> None:
        """Waits for the next try, which begins then; `woken` ends the wait, and is no failure."""
        try:
            async with asyncio.timeout_at(self.due_s):
                await (woken.wait() if woken else asyncio.get_running_loop().create_future())
            self._failures -= 1  # else those who wake a thing often would make its waits long
        except TimeoutError:
            """The next try is due."""
        self._began_s = self._now_s()
