"""A program that is started again whenever it ends, as a restart policy does."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress

from tests.chaos.proxied.programs.telling import Telling
from tests.support.looks import between_looks, lasting
from tests.support.processes.child import Child

LEAVES_S = 60.0
"""Time within which a process that got SIGTERM ends, with its brokers away."""

_TOLD = 2000
"""How much of its log a process that ends by an error leaves in the history."""


class Kept:
    """One program; `close` ends it for good.

    Args:
        name: of the program.
        make: its process of a number, not started.
        telling: where an end by an error is told.
    """

    def __init__(self, name: str, make: Callable[[int], Child], telling: Telling) -> None:
        self.name = name
        self._make, self._telling = make, telling
        self._runs = self._away = 0
        self._over = False
        self._change = asyncio.Condition()
        self._child: Child | None = None
        self._keeping = asyncio.create_task(self._keep())

    async def announced(self) -> None:
        """Waits for what the first process prints when it serves."""
        async with self._change:
            await self._change.wait_for(lambda: self._child is not None)
        assert self._child is not None
        await self._child.announced()

    async def leave(self, *, killed: bool = False) -> None:
        """Ends the program by SIGTERM, or SIGKILL, until `back`."""
        async with self._change:
            self._away += 1
        if (child := self._child) is None or not child.running:
            return
        if not killed:
            child.terminate()
            with suppress(TimeoutError):
                await child.ended(LEAVES_S)
        await child.kill()

    async def back(self) -> None:
        """The program may run again, unless somebody else keeps it away."""
        async with self._change:
            self._away -= 1
            self._change.notify_all()

    async def freeze(self, for_s: float) -> None:
        """SIGSTOP, and later SIGCONT."""
        child = self._child
        if child is None or not child.running:
            return
        child.pause()
        await lasting(for_s)
        if child.running:
            child.resume()

    async def close(self) -> None:
        """Ends the program for good: SIGTERM, and SIGKILL if that does not end it in time."""
        self._over = True
        child = self._child
        if child is not None and child.running:
            child.resume()
            child.terminate()
            try:
                await child.ended(LEAVES_S)
            except TimeoutError:
                why = f"runs {LEAVES_S:g} s after SIGTERM"
                self._telling.tell("exit", process=self.name, why=why)
        async with self._change:
            self._change.notify_all()
        if child is not None:
            await child.kill()
        await self._keeping

    async def _keep(self) -> None:
        while True:
            async with self._change:
                await self._change.wait_for(lambda: self._over or not self._away)
            if self._over:
                return
            self._runs += 1
            child = self._make(self._runs)
            await child.spawn()
            async with self._change:
                self._child = child
                self._change.notify_all()
            self._telling.tell("start", process=self.name, pid=child.pid)
            code = await child.ended(None)
            self._telling.tell("end", process=self.name, code=code)
            asked = self._over or self._away > 0
            if code not in {0, -signal.SIGKILL, -signal.SIGTERM} or (code == 0 and not asked):
                why = f"code {code}: {child.said[-_TOLD:]}"
                self._telling.tell("exit", process=self.name, why=why)
            await between_looks()
