"""A program that does one thing after the other, each at its time and once."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stilltide.schemas.errors import StilltideError
from tests.simulation.plan import Act, Other

ACT_S = 30.0
"""Longest time that one errand takes."""


class Errands:
    """The acts of a program that no earlier process of it has begun.

    Args:
        other: the program.
    """

    def __init__(self, other: Other) -> None:
        self.other = other
        self._left = deque(other.acts)

    async def run(self, do: Callable[[Act], Awaitable[None]]) -> None:
        """Does the acts that are left; what fails is not tried again."""
        loop = asyncio.get_running_loop()
        while self._left:
            act = self._left.popleft()
            await asyncio.sleep(max(0.0, act.at_s - loop.time()))
            with suppress(StilltideError, TimeoutError):
                async with asyncio.timeout(ACT_S):
                    await do(act)
