"""One part of the state: read when asked for, one read at a time, with the last value kept.

*Invariants*: a read that takes long goes on in the background, and is not started a second time; a
read that fails keeps the value of the last one that succeeded, with its time.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from stilltide.connectors.clock import Clock
from stilltide.pipeline.core.status.values import Aged
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError

log = get_logger(__name__)

T = TypeVar("T")

READ_S_MAX = 60.0
"""Seconds after which a read is given up."""


class Part(Generic[T]):
    """One part of the state.

    Args:
        name: name of the part, for the log.
        read: reads the part.
        clock: tells when a read has ended.
        timeout_s: seconds after which a read is given up.
        rest_s: seconds from the end of a read until the next one may begin.

    Attributes:
        aged: the value, its time, and why the last read failed.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], Awaitable[T]],
        clock: Clock,
        *,
        timeout_s: float = READ_S_MAX,
        rest_s: float = 0.0,
    ) -> None:
        self.aged: Aged[T] = Aged()
        self._name = name
        self._read = read
        self._clock = clock
        self._timeout_s = timeout_s
        self._rest_s = rest_s
        self._reading: asyncio.Task[None] | None = None
        self._rested_s = 0.0

    async def renew(self) -> None:
        """Reads the part, unless that was done lately; waits for a read that is under way.

        A caller that stops to wait does not end the read. Raises what is no `StilltideError`.
        """
        if self._reading is None or self._reading.done():
            if asyncio.get_running_loop().time() < self._rested_s:
                return
            self._reading = asyncio.create_task(self._renewed(), name=f"status-{self._name}")
        reading = self._reading  # another caller may begin the next read before this one wakes
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()

    def shown(self, value: T) -> None:
        """Shows what a read that is under way has found so far."""
        self.aged = Aged(value, self._clock.now_ms(), self.aged.problem, self.aged.hint)

    async def close(self) -> None:
        """Ends a read that is under way."""
        await cancelled(self._reading)

    async def _renewed(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                value = await self._read()
        except StilltideError as error:
            place = f"{error.place}: " if error.place else ""
            self._failed(f"{place}{error.primary}", error.hint)
        except TimeoutError:
            self._failed(f"no answer within {self._timeout_s:g} s", "")
        else:
            self.aged = Aged(value, self._clock.now_ms())
        finally:
            self._rested_s = asyncio.get_running_loop().time() + self._rest_s

    def _failed(self, problem: str, hint: str) -> None:
        log.debug("status_not_read", part=self._name, why=problem)
        self.aged = Aged(self.aged.value, self.aged.read_ms, problem, hint)
