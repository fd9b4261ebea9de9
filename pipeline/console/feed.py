"""The state that all viewers share: collected once a second, as long as a page is open.

*Source*: docs/console.md. *Invariants*: however many look, clusters are asked once a second;
without a viewer they are asked once a minute, for the charts of the last half hour.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stilltide.pipeline.core.status.findings import (
    LIMITS,
    StandingFindings,
    StatusFinding,
    StatusLimits,
)
from stilltide.pipeline.core.status.samples import REST_MS, Sample, Samples
from stilltide.pipeline.core.status.values import SystemStatus

EVERY_S = 1.0
"""Seconds between two states."""

IDLE_S = 30.0
"""Seconds after the last question of a viewer, after which a state is collected rarely."""

REST_S = REST_MS / 1000
"""Seconds between two states while nobody looks: each is a sample of the last half hour."""


@dataclass(frozen=True)
class Shot:
    """The state at one moment.

    Attributes:
        number: counts the states of this process, from 1.
        status: the state.
        findings: what is found in it.
        samples: the last half hour, the oldest sample first.
    """

    number: int
    status: SystemStatus
    findings: tuple[StatusFinding, ...]
    samples: tuple[Sample, ...] = ()


class Feed:
    """Collects states while `run` runs, and gives each of them to all viewers.

    Args:
        collect: collects a state within so many seconds.
        limits: from when on something is a finding.
        every_s: seconds between two states, > 0.
        idle_s: seconds without a question, after which a state is collected rarely.
        rest_s: seconds between two states then.
        samples: the samples so far; None: none.
    """

    def __init__(
        self,
        collect: Callable[[float], Awaitable[SystemStatus]],
        *,
        limits: StatusLimits = LIMITS,
        every_s: float = EVERY_S,
        idle_s: float = IDLE_S,
        rest_s: float = REST_S,
        samples: Samples | None = None,
    ) -> None:
        self._collect = collect
        self._standing = StandingFindings(limits)
        self._every_s = every_s
        self._idle_s = idle_s
        self._rest_s = rest_s
        self._samples = samples or Samples()
        self._kept = self._samples.kept
        self._shot: Shot | None = None
        self._shot_s = 0.0
        self._asked_s = 0.0
        self._asked = asyncio.Event()
        self._next: asyncio.Future[Shot] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Collects until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._rest_s):
                    await self._asked.wait()
            began_s = loop.time()
            status = await self._collect(self._every_s)
            self._publish(status)
            if loop.time() - self._asked_s > self._idle_s:
                self._asked.clear()
            await asyncio.sleep(max(0.0, began_s + self._every_s - loop.time()))

    async def now(self) -> Shot:
        """A state of the last two seconds; the next one if the last one is older."""
        self._ask()
        old_s = asyncio.get_running_loop().time() - self._shot_s
        if self._shot is not None and old_s <= 2 * self._every_s:
            return self._shot
        return await self.after(0 if self._shot is None else self._shot.number)

    async def after(self, number: int) -> Shot:
        """The newest state after the one of this number; waits for it."""
        self._ask()
        while self._shot is None or self._shot.number <= number:
            await asyncio.shield(self._next)
        self._ask()
        return self._shot

    def _ask(self) -> None:
        self._asked_s = asyncio.get_running_loop().time()
        self._asked.set()

    def _publish(self, status: SystemStatus) -> None:
        loop = asyncio.get_running_loop()
        number = 1 if self._shot is None else self._shot.number + 1
        if self._samples.add(status):
            self._kept = self._samples.kept
        self._shot = Shot(number, status, self._standing.of(status), self._kept)
        self._shot_s = loop.time()
        awaited, self._next = self._next, loop.create_future()
        awaited.set_result(self._shot)
