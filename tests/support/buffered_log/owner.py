"""An owner of a log on the memory broker, which notes what the log reports."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stilltide.connectors.ports.connector import Connector
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits
from stilltide.pipeline.drivers.buffered_log.owned_log import OwnedLog
from stilltide.pipeline.drivers.coordinator.owner import CODEC
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import WAIT_S, EntryQueue, until

LOG = TopicPartition(TXN_LOG, 0)

BYTES = replace(CODEC, decode=bytes)
"""A codec for logs whose records are any bytes, except for fences and no-ops."""
BATCHED = BatchLimits()


class Owner:
    """An owner of the log, with the entries and events that the log reported."""

    def __init__(self, connector: Connector, limits: BatchLimits = BATCHED) -> None:
        self.applied: list[tuple[list[Any], bool]] = []
        self.began: list[int] = []
        self.foreign: list[int] = []
        self.writer = connector.writer("owner")
        self._serving = asyncio.Event()
        self._queue = EntryQueue()
        self._tasks: list[asyncio.Task[None]] = []
        self.log = OwnedLog(
            connector,
            LOG,
            BYTES,
            limits,
            writer=self.writer,
            submit=self._queue.submit,
            applied=self._apply,
            replaying=self.began.append,
            serving=self._serving.set,
            foreign=lambda entry: self.foreign.append(entry.offset),
        )

    def run(self) -> "asyncio.Task[None]":
        """Starts the owner as a task, which ends with the error of `run`."""
        task = asyncio.create_task(self.log.run())
        self._tasks = [task, asyncio.create_task(self._queue.run())]
        return task

    async def serving(self) -> "asyncio.Task[None]":
        """Starts the owner, and returns when it serves."""
        task = self.run()
        async with asyncio.timeout(WAIT_S):
            await self._serving.wait()
        return task

    async def held_back(self) -> None:
        """Returns when the broker holds back a write of this owner."""
        await until(lambda: self.writer._waiting and not self.writer._due)

    async def close(self) -> None:
        """Stops the owner."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.writer.close()

    def _apply(self, _offset: Offset, records: Sequence[Any], own: bool) -> None:  # noqa: FBT001 - OwnedLog's call
        self.applied.append((list(records), own))


async def raised(task: "asyncio.Task[None]") -> BaseException:
    """The error with which an ownership ended."""
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait([task])
    error = task.exception()
    assert error is not None
    return error
