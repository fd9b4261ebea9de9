"""Writes a link's last error to its target, beside the link's beats.

*Source*: docs/protocols H9.

*Invariants*: a link that meets no error opens no connection for it. A write that fails ends
nothing: the link goes on without it. Of an error that is not Stilltide's own, only the kind is
written, since its text may hold anything.
"""

import asyncio

from stilltide.connectors.clock import Clock
from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.writers import append
from stilltide.pipeline.core.links.last_error import LastErrorReport, WriteLastError
from stilltide.pipeline.drivers.service.ended import cause_of
from stilltide.pipeline.drivers.service.hindrances import Hindrances
from stilltide.pipeline.drivers.shared.alarm import Alarm
from stilltide.pipeline.drivers.shared.tasks import cancelled
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import StilltideError
from stilltide.schemas.replication.positions import (
    LAST_ERRORS_PARTITION,
    LastError,
    LastErrorKey,
    encode_last_error,
    encode_last_error_key,
    last_error,
)
from stilltide.schemas.topics import REPLICATION_POSITIONS
from stilltide.schemas.values import TopicPartition

_log = get_logger(__name__)

PLACE = TopicPartition(REPLICATION_POSITIONS, LAST_ERRORS_PARTITION)

WRITE_S = 10.0
"""Longest wait for the report of a write."""

CLOSE_S = 3.0
"""Longest wait at the link's end: a process that is told to stop must not stay for a target that is
away."""


class LinkErrorWriter:
    """Tells the last error of one link; `close` it last.

    Args:
        link: the link.
        target: the cluster to which it copies.
        clock: the clocks.
        hindrances: what hinders the process that runs the link (C17); None: nobody asks.

    Attributes:
        link, hindrances: as above.
    """

    def __init__(
        self,
        link: LastErrorKey,
        target: Connector,
        clock: Clock,
        hindrances: Hindrances | None = None,
    ) -> None:
        self.hindrances = hindrances or Hindrances()
        self.link = link
        self._target = target
        self._clock = clock
        self._machine = LastErrorReport()
        self._writing: asyncio.Task[None] | None = None
        self._alarm: Alarm | None = None

    @property
    def newest(self) -> LastError | None:
        """The last error that was met; None: none yet."""
        return self._machine.newest

    def met(self, error: Exception) -> None:
        """Takes an error after which the link goes on, or ends."""
        if self._alarm is None:
            self._alarm = Alarm(self._tick)
        last = last_error(self._clock.now_ms(), _cause(error), getattr(error, "hint", ""))
        self._carry_out(self._machine.met(last, self._clock.monotonic_ms()))

    async def close(self, within_s: float = CLOSE_S) -> None:
        """Writes what is not written yet, unless the target does not answer within that time."""
        if self._alarm is None:
            return
        self._alarm.cancel()
        try:
            async with asyncio.timeout(within_s):
                await self._finished()
                self._carry_out(self._machine.ending(self._clock.monotonic_ms()))
                await self._finished()
        except TimeoutError:
            _log.debug("last_error_not_written", source=self.link.source, why="no answer in time")
        finally:
            self._alarm.cancel()
            await cancelled(self._writing)

    async def _finished(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _tick(self) -> None:
        self._carry_out(self._machine.tick(self._clock.monotonic_ms()))

    def _carry_out(self, effects: list[WriteLastError]) -> None:
        for effect in effects:
            self._writing = asyncio.create_task(self._write(effect.error))
        assert self._alarm is not None
        self._alarm.arm(self._machine.deadline_ms, self._clock.monotonic_ms())

    async def _write(self, error: LastError) -> None:
        writer = self._target.writer(f"link-{self.link.source}-{self.link.target}-errors")
        try:
            async with asyncio.timeout(WRITE_S):
                key = encode_last_error_key(self.link)
                await append(writer, PLACE, encode_last_error(error), key=key)
        except (ConnectorError, TimeoutError) as problem:
            _log.debug("last_error_not_written", source=self.link.source, why=str(problem))
            effects = self._machine.not_written(self._clock.monotonic_ms())
        else:
            effects = self._machine.written(error, self._clock.monotonic_ms())
        finally:
            await writer.close(timeout_s=0.1)
        self._carry_out(effects)


def _cause(error: Exception) -> str:
    return cause_of(error) if isinstance(error, StilltideError) else type(error).__name__
