"""Writes sets of records completely or not at all, for the memory broker.

*Source*: connectors.ports, `TransactionalWriter`.

*Invariants*: a set is appended in one step, in a later turn of the loop than the call of `write`;
after the set each partition skips an offset, because Kafka's control record takes one.
"""

import asyncio
from collections.abc import Sequence

from stilltide.connectors.errors import FatalError, FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.ports.records import NewRecord


class MemoryTransactionalWriter:
    """A `TransactionalWriter` of a memory broker."""

    def __init__(self, broker: MemoryBroker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch = 0
        self._closed = False
        self._moved = asyncio.Event()
        self._watch = broker.watchers.add(self._moved.set)

    async def fence(self) -> None:
        """Takes the transactional id; see `TransactionalWriter.fence`."""
        self._check_open()
        await asyncio.sleep(0)
        self._epoch = self._broker.transactions.fence(self._id)

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Writes a set; see `TransactionalWriter.write`."""
        self._check_open()
        if not records:
            return
        if not self._epoch:
            raise FatalError(f"writer {self._id} has not been fenced", hint="call fence() first")
        epoch, self._epoch = self._epoch, 0
        await asyncio.sleep(0)
        while self._is_held(epoch, records):
            self._moved.clear()
            await self._moved.wait()
        if self._broker.transactions.epoch_of(self._id) != epoch:
            raise FencedError(f"another writer has taken transactional id {self._id}")
        self._broker.transactions.append_all(records)
        self._epoch = epoch

    async def close(self) -> None:
        """Ends the writer; safe to call twice."""
        if not self._closed:
            self._closed = True
            self._watch.end()

    def _is_held(self, epoch: int, records: Sequence[NewRecord]) -> bool:
        return self._broker.transactions.epoch_of(self._id) == epoch and any(
            self._broker.is_held(it.data.topic) for it in records
        )

    def _check_open(self) -> None:
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
