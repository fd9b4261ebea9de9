"""The shortest driver of a snapshot writer: what its effects need of the ports, in turn."""

import asyncio
import secrets

from connectors.base import EndReached, NewRecord, Record
from connectors.memory.connector import MemoryConnector
from pipeline.core.txn_buffer.buffer import DataPosition
from pipeline.core.txn_buffer.effects import (
    AskBarriers,
    ReadMarkerEnd,
    ReadPositions,
    SnapshotsTaken,
    TrimMarkers,
    WriterEffect,
    WriteSnapshots,
)
from pipeline.core.txn_buffer.recovery import SnapshotTable, recover
from pipeline.core.txn_buffer.writer import SnapshotLimits, SnapshotWriter
from pipeline.drivers.requests import CoordinatorRequests
from schemas import markers
from schemas.topics import TXN_LOG, TXN_MARKERS, TXN_SNAPSHOTS
from schemas.transactions import WriteBarrier
from schemas.values import EndOffset, Offset, TopicPartition


class SnapshotLoop:
    """A writer of one marker partition, run by hand."""

    def __init__(
        self, connector: MemoryConnector, asker: CoordinatorRequests, partition: int
    ) -> None:
        self._connector = connector
        self._asker = asker
        self._admin = connector.admin()
        self._partition = partition
        self._markers = TopicPartition(TXN_MARKERS, partition)
        self._snapshots = TopicPartition(TXN_SNAPSHOTS, partition)
        self._writer = connector.transactional_writer(f"snapshots-{partition}")
        self._reader = connector.reader("snapshot-markers")
        self.taken = 0

    async def begin(self) -> None:
        """E3, E4: fences whoever was before, then recovers."""
        await self._writer.fence()
        table = await self.table()
        start = (await self._admin.start_offsets([self._markers]))[self._markers]
        self.machine = SnapshotWriter(
            self._partition,
            table,
            start,
            nonce=secrets.token_bytes(16),
            limits=SnapshotLimits(),
            now_ms=0,
        )
        await self._reader.assign({self._markers: self.machine.position})

    async def table(self) -> SnapshotTable:
        """The snapshot partition, read to its last stable offset."""
        reader = self._connector.reader("snapshots")
        await reader.assign({self._snapshots: Offset(0)})
        found: list[Record] = []
        while True:
            for item in await reader.read():
                if isinstance(item, EndReached):
                    await reader.close()
                    return recover(self._partition, ((it.offset, it.key, it.value) for it in found))
                found.append(item)

    async def take(self, data: TopicPartition) -> None:
        """A snapshot on request."""
        wanted = self.taken + 1
        await self._run(self.machine.requested(wanted, data, 0))
        while self.taken < wanted:
            for item in await self._reader.read():
                if isinstance(item, EndReached):
                    effects = self.machine.end_reached(item.end_offset, 0)
                else:
                    marker = markers.decode(item.key, item.value)
                    effects = self.machine.markers_read([(item.offset, marker)], 0)
                await self._run(effects)

    async def close(self) -> None:
        """Releases the clients."""
        await self._writer.close()
        await self._reader.close()
        await self._admin.close()

    async def _run(self, effects: list[WriterEffect]) -> None:
        for effect in effects:
            match effect:
                case ReadPositions(counter, partitions):
                    found = {it: await self._position(it) for it in partitions}
                    ends = await self._log_ends()
                    await self._run(self.machine.positions_read(counter, found, ends, 0))
                case AskBarriers(probe, coordinators):
                    body = WriteBarrier(self._partition, probe)
                    await asyncio.gather(*(self._asker.ask(it, body) for it in coordinators))
                case ReadMarkerEnd(counter):
                    ends = await self._admin.end_offsets([self._markers])
                    end = ends[self._markers]
                    await self._run(self.machine.marker_end_read(counter, end, 0))
                case WriteSnapshots(counter, records):
                    await self._writer.write([NewRecord(self._snapshots, *it) for it in records])
                    await self._run(self.machine.snapshots_written(counter, 0))
                case TrimMarkers(before):
                    await self._admin.delete_records({self._markers: before})
                case SnapshotsTaken(requests):
                    self.taken = max(requests)

    async def _position(self, data: TopicPartition) -> DataPosition:
        admin = self._admin
        described = await admin.describe_topics([data.topic])
        start = (await admin.start_offsets([data]))[data]
        stable = (await admin.end_offsets([data], committed=True))[data]
        end = (await admin.end_offsets([data]))[data]
        return DataPosition(described[data.topic].topic_id, EndOffset(start), stable, end)

    async def _log_ends(self) -> dict[int, EndOffset]:
        count = (await self._admin.describe_topics([TXN_LOG]))[TXN_LOG].partition_count
        logs = [TopicPartition(TXN_LOG, it) for it in range(count)]
        return {it.partition: end for it, end in (await self._admin.end_offsets(logs)).items()}
