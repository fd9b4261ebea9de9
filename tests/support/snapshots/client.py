"""Writes transactions to one data partition, and reads its snapshots, on any connector."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from stilltide.connectors.errors import ConnectorError, OffsetOutOfRangeError
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Record
from stilltide.pipeline.core.snapshots.recovery import Snapshot, SnapshotTable
from stilltide.pipeline.drivers.snapshots.client import SnapshotLine
from stilltide.schemas.coordinator import markers
from stilltide.schemas.coordinator.markers import Barrier, Marker
from stilltide.schemas.coordinator.transactions import End, Open, Opened, Registered, Written
from stilltide.schemas.headers import TXN
from stilltide.schemas.service.envelopes import Done
from stilltide.schemas.snapshots.requests import SnapshotSummary
from stilltide.schemas.topics import TXN_MARKERS, TXN_SNAPSHOTS, system_partition
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId
from tests.support.coordinator.asker import AskingCoordinators
from tests.support.looks import between_looks
from tests.support.snapshots.recovered import recover

WAIT_S = 240.0

TXN_TIMEOUT_MS = 60_000


class Sent(NamedTuple):
    """A record of a transaction."""

    txn: TxnId
    offset: Offset


async def read_all(connector: Connector, data: TopicPartition) -> list[Record]:
    """Every committed record that a partition holds now."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(OffsetOutOfRangeError):  # trimmed meanwhile: the log begins later
                return await _read_all(connector, data)


async def _read_all(connector: Connector, data: TopicPartition) -> list[Record]:
    admin, reader = connector.admin(), connector.reader("test-all")
    found: list[Record] = []
    try:
        start = (await admin.start_offsets([data]))[data]
        end = (await admin.end_offsets([data], committed=True))[data]
        await reader.assign({data: start})
        while True:
            for item in await reader.read():
                if isinstance(item, Record):
                    found.append(item)
                elif item.end_offset >= end:
                    return found
    finally:
        await reader.close()
        await admin.close()


class SnapshotClient:
    """Made by `snapshot_client`; transactions are opened and ended by hand, with no stock."""

    def __init__(
        self,
        connector: Connector,
        data: TopicPartition,
        asker: AskingCoordinators,
        line: SnapshotLine,
        *,
        partitions: int,
    ) -> None:
        self.connector, self.data = connector, data
        self.partition = system_partition(data, partitions)
        self.markers = TopicPartition(TXN_MARKERS, self.partition)
        self.snapshots = TopicPartition(TXN_SNAPSHOTS, self.partition)
        self.admin = connector.admin()
        self._writer = connector.writer("test-records")
        self._asker, self._line = asker, line

    async def topic_id(self) -> bytes:
        """The id of the data topic as it is now."""
        return (await self.admin.describe_topics([self.data.topic]))[self.data.topic].topic_id

    async def write(self, coordinator: int) -> Sent:
        """Opens a transaction and writes one record."""
        start = (await self.admin.end_offsets([self.data]))[self.data]
        there = Registered(self.data, start, await self.topic_id())
        opened = await self._asker.ask(coordinator, Open(TXN_TIMEOUT_MS, 1, (there,)))
        assert isinstance(opened, Opened)
        txn = TxnId(coordinator, opened.first_sequence)
        return Sent(txn, await self.append(txn))

    async def append(self, txn: TxnId) -> Offset:
        """Appends a record of a transaction, open or ended; returns the offset."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def delivered(error: ConnectorError | None, offset: int) -> None:
            if error is None:
                done.set_result(offset)
            else:
                done.set_exception(error)

        self._writer.append(self.data, b"record", delivered, headers=[(TXN, txn.to_bytes())])
        return Offset(await done)

    async def end(self, sent: Sent, *, committed: bool) -> None:
        """Returns when its markers are durable."""
        one = Written(self.data, sent.offset, EndOffset(sent.offset + 1), 1)
        end = End(sent.txn.sequence, committed, (one,) if committed else (), wait_visible=True)
        assert await self._asker.ask(sent.txn.coordinator, end) == Done()

    async def committed(self, coordinator: int = 0) -> Sent:
        """Writes one record in a transaction that commits."""
        sent = await self.write(coordinator)
        await self.end(sent, committed=True)
        return sent

    async def aborted(self, coordinator: int = 0) -> Sent:
        """Writes one record in a transaction that aborts."""
        sent = await self.write(coordinator)
        await self.end(sent, committed=False)
        return sent

    async def take(self) -> SnapshotSummary:
        """Requests a snapshot."""
        return await self._line.take(self.data)

    async def table(self) -> SnapshotTable:
        """The content of the snapshot partition."""
        found = await read_all(self.connector, self.snapshots)
        return recover(self.partition, ((it.offset, it.key, it.value) for it in found))

    async def snapshot(self) -> Snapshot:
        """The snapshot of the data partition."""
        found = (await self.table()).snapshot(self.data, await self.topic_id())
        assert found is not None
        return found

    async def seen(self, *sent: Sent) -> list[bool | None]:
        """The snapshot's decision on records: True visible, False hidden, None undecided (D4)."""
        snapshot = await self.snapshot()
        return [snapshot.visible(offset, *txn) for txn, offset in sent]

    async def marker_log(self) -> list[Marker | Barrier]:
        """The content of the marker partition."""
        found = await read_all(self.connector, self.markers)
        decoded = (markers.decode(it.key, it.value) for it in found)
        return [it for it in decoded if it is not None]

    async def outcomes(self) -> list[Marker]:
        """The markers of the marker partition, without barriers."""
        return [it for it in await self.marker_log() if isinstance(it, Marker)]

    async def close(self) -> None:
        """Closes the clients."""
        await self._writer.close()
        await self.admin.close()


async def eventually(holds: Callable[[], Awaitable[object]]) -> None:
    """Asks until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not await holds():
            await between_looks()


@asynccontextmanager
async def snapshot_client(
    connector: Connector, data: TopicPartition, *, partitions: int
) -> AsyncIterator[SnapshotClient]:
    """A client of a cluster with a worker; `partitions` is the worker's setting."""
    asking = AskingCoordinators(connector, request_timeout_s=WAIT_S, partitions=partitions)
    lines = SnapshotLine(connector, "test-line", timeout_s=WAIT_S)
    async with asking as asker, lines as line:
        made = SnapshotClient(connector, data, asker, line, partitions=partitions)
        try:
            yield made
        finally:
            await made.close()
