"""What a part of a load has done, and when: a test waits for more, and measures the gaps."""

import asyncio
import time
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise

PROGRESS_S = 300.0
"""Time within which a part of a load does what is awaited, on a busy machine."""


class Progress:
    """Counts steps by caller; to be used on one event loop.

    Args:
        name: of the part, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: defaultdict[int, list[float]] = defaultdict(list)
        self._count = 0
        self._more = asyncio.Event()

    @property
    def count(self) -> int:
        """The steps of all callers so far."""
        return self._count

    def step(self, caller: int = 0, at_s: float | None = None) -> None:
        """A caller has done one more step.

        Args:
            caller: number of the caller.
            at_s: when, on the clock `time.monotonic`; by default now.
        """
        self._steps[caller].append(time.monotonic() if at_s is None else at_s)
        self._count += 1
        self._more.set()

    async def more(self, steps: int, within_s: float = PROGRESS_S) -> None:
        """Waits for further steps; fails if they do not come within `within_s`."""
        goal = self._count + steps
        try:
            async with asyncio.timeout(within_s):
                while self._count < goal:
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            left = goal - self._count
            raise AssertionError(
                f"{self.name}: no {left} of {steps} steps in {within_s:g} s"
            ) from None

    async def rest(self, quiet_s: float, within_s: float = PROGRESS_S) -> None:
        """Waits until no step has come for `quiet_s`: what the steps need is not there."""
        async with asyncio.timeout(within_s):
            while True:
                self._more.clear()
                try:
                    async with asyncio.timeout(quiet_s):
                        await self._more.wait()
                except TimeoutError:
                    return

    def gap_s(self, since_s: float, until_s: float) -> float:
        """The longest time without a step of any caller between two moments."""
        return _longest_s([at for steps in self._steps.values() for at in steps], since_s, until_s)

    def stall_s(self, since_s: float, until_s: float) -> float:
        """The longest time that a single caller was without a step between two moments."""
        return max(_longest_s(steps, since_s, until_s) for steps in self._steps.values())


def _longest_s(steps: list[float], since_s: float, until_s: float) -> float:
    moments = sorted([since_s, until_s, *(at for at in steps if since_s < at < until_s)])
    return max(later - earlier for earlier, later in pairwise(moments))


class Pacing:
    """Lets callers begin a step at most every `every_s` seconds, until `stop`."""

    def __init__(self, every_s: float) -> None:
        self.stopped = asyncio.Event()
        self._every_s = every_s

    def stop(self) -> None:
        """Wakes every caller for the last time."""
        self.stopped.set()

    async def next(self) -> bool:
        """Waits for the next turn; False after `stop`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._every_s):
                await self.stopped.wait()
        return not self.stopped.is_set()
