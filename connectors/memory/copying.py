"""The reader and the writer of a link, for the memory broker.

*Source*: connectors.ports.copying.

*Invariants*: copies are appended at once, in a transaction that stays open until `commit`, `close`,
or another writer's `fence`; readers of committed data stop in front of it.
"""

import asyncio
from collections.abc import Sequence
from itertools import groupby

from stilltide.connectors.errors import ConnectorError, FatalError, FencedError
from stilltide.connectors.memory.broker import MemoryBroker
from stilltide.connectors.memory.reader import MemoryReader
from stilltide.connectors.ports.copying import Columns, Copies, Span
from stilltide.connectors.ports.readers import EndReached, NewRecord, Record
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class MemoryColumnReader(MemoryReader):
    """A `ColumnReader` of a memory broker; every timestamp is 0, since the broker has no clock."""

    async def read(self) -> Sequence[Columns | EndReached]:  # pyright: ignore[reportIncompatibleMethodOverride] - columns instead of records
        """The next records, column by column."""
        return columns_of(await super().read())


def columns_of(items: Sequence[Record | EndReached]) -> list[Columns | EndReached]:
    """The items of a reader of partitions, as a column reader returns them."""
    columns: list[Columns | EndReached] = []
    for place, run in groupby(items, _place):
        if place is None:
            columns += [it for it in run if isinstance(it, EndReached)]
        else:
            columns.append(_columns(place, [it for it in run if isinstance(it, Record)]))
    return columns


def _place(item: Record | EndReached) -> TopicPartition | None:
    return item.data if isinstance(item, Record) else None


def _columns(data: TopicPartition, records: list[Record]) -> Columns:
    return Columns(
        data,
        [record.offset for record in records],
        [record.headers for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [0] * len(records),
    )


class MemoryCopyWriter:
    """A `CopyWriter` of a memory broker."""

    def __init__(self, broker: MemoryBroker, transactional_id: str) -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch = 0
        self._is_open = False
        self._closed = False

    async def fence(self) -> None:
        """Takes the transactional id; see `CopyWriter.fence`."""
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
        await asyncio.sleep(0)
        self._epoch = self._broker.transactions.fence(self._id)
        self._is_open = False

    async def begin(self) -> None:
        """Begins a transaction."""
        self._check()
        assert not self._is_open, "one transaction at a time"
        self._is_open = True

    async def copy(self, data: TopicPartition, copies: Copies, span: Span) -> None:
        """Writes copies; see `CopyWriter.copy`."""
        await asyncio.sleep(0)
        self._check()
        for key, value, _, headers in zip(*copies, strict=True):
            offset = self._append(data, key, value, headers)
            if span.first is None:
                span.first = offset
            span.end = EndOffset(offset + 1)

    async def flush(self) -> None:
        """Returns at once: every copy is appended already."""
        await asyncio.sleep(0)
        self._check()
        self._broker.check_up()

    async def commit(self, records: Sequence[NewRecord]) -> None:
        """Writes `records` after the copies, and commits the transaction."""
        await asyncio.sleep(0)
        self._check()
        for data, key, value in records:
            self._append(data, key, value, None)
        self._broker.transactions.end_open(self._id, committed=True)
        self._is_open = False

    async def close(self) -> None:
        """Aborts the open transaction; safe to call twice."""
        if self._is_open and self._broker.transactions.epoch_of(self._id) == self._epoch:
            self._broker.transactions.end_open(self._id, committed=False)
        self._closed, self._is_open = True, False

    def _append(
        self,
        data: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]] | None,
    ) -> Offset:
        try:
            return self._broker.transactions.append_open(self._id, data, key, value, headers)
        except ConnectorError:
            self._epoch = 0
            raise

    def _check(self) -> None:
        if self._closed:
            raise FatalError(f"writer {self._id} is closed")
        if not self._epoch:
            raise FatalError(f"writer {self._id} has not been fenced", hint="call fence() first")
        if self._broker.transactions.epoch_of(self._id) != self._epoch:
            raise FencedError(f"another writer has taken transactional id {self._id}")
