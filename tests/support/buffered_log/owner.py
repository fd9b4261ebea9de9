"""An owner of a log on the memory broker, which notes what the log reports."""

import asyncio
from collections.abc import Sequence
from typing import Any

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.buffered_log.accumulator import BatchLimits, WriteEntry
from stilltide.pipeline.drivers.buffered_log.owned_log import LogCodec, OwnedLog
from stilltide.pipeline.drivers.coordinator.owner import CODEC
from stilltide.schemas.topics import TXN_LOG
from stilltide.schemas.values import Offset, TopicPartition
from tests.support.coordinator.worker_memory import WAIT_S, EntryQueue, until

LOG = TopicPartition(TXN_LOG, 0)


class _Bytes(LogCodec):
    """The codec of logs whose records are any bytes, except for fences and no-ops."""

    def nonce_of(self, record: bytes) -> bytes:
        """The nonce of a fence."""
        return CODEC.nonce_of(record)


BYTES = _Bytes(CODEC.encode, bytes)
BATCHED = BatchLimits()


class Listener:
    """Waits until a log serves, and looks at nothing."""

    def __init__(self) -> None:
        self.serving = asyncio.Event()

    def replaying(self, log_start: Offset) -> None:
        """A replay begins."""

    def applied(self, offset: Offset | None, records: Sequence[Any], *, own: bool) -> None:
        """An entry was read."""

    def serve(self) -> None:
        """The replay has ended."""
        self.serving.set()

    def wrote(self, entry: WriteEntry, size_bytes: int) -> None:
        """An entry was given to the producer."""

    def foreign(self, entry: Record) -> None:
        """A foreign entry was read."""


class Owner:
    """An owner of the log, with the entries and events that the log reported."""

    def __init__(self, connector: Connector, limits: BatchLimits = BATCHED) -> None:
        self.entries: list[tuple[list[Any], bool]] = []
        self.began: list[int] = []
        self.strangers: list[int] = []
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
            entries=self._queue,
            listener=self,
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

    def replaying(self, log_start: Offset) -> None:
        """Notes where a replay begins."""
        self.began.append(log_start)

    def applied(self, _offset: Offset | None, records: Sequence[Any], *, own: bool) -> None:
        """Notes the records of an entry."""
        self.entries.append((list(records), own))

    def serve(self) -> None:
        """The replay has ended."""
        self._serving.set()

    def wrote(self, entry: WriteEntry, size_bytes: int) -> None:
        """An entry was given to the producer."""

    def foreign(self, entry: Record) -> None:
        """Notes the offset of a foreign entry."""
        self.strangers.append(entry.offset)


async def raised(task: "asyncio.Task[None]") -> BaseException:
    """The error with which an ownership ended."""
    async with asyncio.timeout(WAIT_S):
        await asyncio.wait([task])
    error = task.exception()
    assert error is not None
    return error
