"""The records of one transaction: held until their partition is registered, appended, reported.

*Source*: docs/protocols C2. Orphan records (D6) are impossible: a record is sent only after
its partition is registered with its transaction.
"""

import asyncio
from typing import NamedTuple

from stilltide.connectors.errors import RetriableError
from stilltide.pipeline.client.cluster import ClientCluster
from stilltide.pipeline.core.coordinator.client_transaction import PartitionWrites
from stilltide.schemas.coordinator.transactions import Registered
from stilltide.schemas.headers import TXN, Headers
from stilltide.schemas.values import TopicPartition, TxnId


class HeldRecord(NamedTuple):
    """A record that waits for its partition to be registered."""

    value: bytes | None
    key: bytes | None
    headers: Headers


class TransactionRecords:
    """The records of one transaction.

    Attributes:
        held: records of partitions that are not registered yet.
        held_count: number of held records.
    """

    def __init__(self, cluster: ClientCluster) -> None:
        self._cluster = cluster
        self._writer = cluster.writer
        self._header: list[tuple[str, bytes | None]] = []
        self.held: dict[TopicPartition, list[HeldRecord]] = {}
        self.held_count = 0
        self._unreported = 0
        self._flushing: list[asyncio.Future[None]] = []

    def belong_to(self, txn: TxnId) -> None:
        """The transaction has begun: every record carries its identity."""
        self._header = [(TXN, txn.to_bytes())]

    def open(self, registered: Registered) -> PartitionWrites:
        """Opens a registered partition for which no record is held: records may be appended."""
        self._cluster.gathering.sends(self)
        return PartitionWrites(registered, self._reported)

    def hold(self, data: TopicPartition, record: HeldRecord) -> None:
        """Keeps a record until its partition is registered (C2)."""
        self.held.setdefault(data, []).append(record)
        self.held_count += 1

    async def let_go(self, registered: Registered) -> PartitionWrites:
        """The partition is registered: appends the records that are held for it."""
        data = registered.data
        writes = PartitionWrites(registered, self._reported)
        held = self.held.get(data, [])
        if held:
            self._cluster.gathering.sends(self)
        for record in held:  # grows while it is drained, so that order is kept
            while not self.append(writes, *record):
                await self._writer.room()
        self.held_count -= len(held)
        self.held.pop(data, None)
        return writes

    def append(
        self,
        writes: PartitionWrites,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
    ) -> bool:
        """Hands a record to the producer; False while its queue is full."""
        with_txn = [*self._header, *headers] if headers else self._header
        try:
            self._writer.append(writes.data, value, writes.delivered, key=key, headers=with_txn)
        except RetriableError:
            return False
        writes.sent += 1
        self._unreported += 1
        return True

    def start_flush(self) -> None:
        """Has the records that were appended leave, without a wait for their reports."""
        if self._unreported:
            self._cluster.gathering.waits(self)

    async def flush(self) -> None:
        """Waits until every record that was appended is reported, as durable or not."""
        if self._unreported:
            self.start_flush()
            landed = asyncio.get_running_loop().create_future()
            self._flushing.append(landed)
            await landed

    def discard_held(self) -> None:
        """The transaction aborts: held records are never sent."""
        self.held.clear()

    def ended(self) -> None:
        """The transaction is over."""
        self._cluster.gathering.ended(self)

    def _reported(self) -> None:
        self._unreported -= 1
        if self._unreported:
            return
        self._cluster.gathering.durable(self)
        for landed in self._flushing:
            if not landed.done():
                landed.set_result(None)
        self._flushing.clear()
