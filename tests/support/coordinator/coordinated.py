"""A data topic with coordinated records and their markers, written by hand on any connector."""

import asyncio

from stilltide.connectors.errors import ConnectorError
from stilltide.connectors.ports.connector import Connector
from stilltide.schemas.coordinator.markers import Marker, encode_key, encode_value
from stilltide.schemas.headers import TXN
from stilltide.schemas.topics import TXN_MARKERS, TopicSpec, system_partition, system_topics
from stilltide.schemas.values import EndOffset, TopicPartition, TxnId

MARKER_PARTITIONS = 4
"""The default of the settings, because all tests of a broker share its system topics."""


class CoordinatedTopic:
    """Writes records and markers as clients and coordinators do; made by `create`."""

    def __init__(self, connector: Connector, name: str, topic_id: bytes) -> None:
        self.name = name
        self._topic_id = topic_id
        self._writer = connector.writer(f"test-{name}")

    @classmethod
    async def create(cls, connector: Connector, name: str, partitions: int) -> "CoordinatedTopic":
        """Creates the topic and the system topics."""
        admin = connector.admin()
        specs = system_topics(coordinators=4, partitions=MARKER_PARTITIONS)
        await admin.ensure_topics([*specs, TopicSpec(name, partitions)])
        described = await admin.describe_topics([name])
        await admin.close()
        return cls(connector, name, described[name].topic_id)

    @property
    def topic_id(self) -> bytes:
        """The id that the topic had when it was created."""
        return self._topic_id

    def at(self, partition: int) -> TopicPartition:
        """A partition of the topic."""
        return TopicPartition(self.name, partition)

    async def write(
        self, partition: int, txn: TxnId | bytes | None, count: int = 1, value: bytes | None = None
    ) -> EndOffset:
        """Writes records, plain, of a transaction, or with a raw header; returns their end offset.

        The default value of a record is its number in this call.
        """
        raw = txn.to_bytes() if isinstance(txn, TxnId) else txn
        headers = None if raw is None else [(TXN, raw)]
        offsets = await asyncio.gather(
            *(
                self._append(self.at(partition), None, value or b"%d" % number, headers)
                for number in range(count)
            )
        )
        return EndOffset(offsets[-1] + 1)

    async def commit(
        self, partition: int, txn: TxnId, end_offset: int, *, topic_id: bytes | None = None
    ) -> None:
        """Writes a commit marker; `topic_id` is another one for a marker of another topic."""
        await self._mark(partition, txn, committed=True, end_offset=end_offset, topic_id=topic_id)

    async def abort(self, partition: int, txn: TxnId, end_offset: int | None = None) -> None:
        """Writes an abort marker."""
        await self._mark(partition, txn, committed=False, end_offset=end_offset)

    async def write_marker_bytes(self, partition: int, key: bytes, value: bytes | None) -> int:
        """Writes any bytes to the markers of a partition; returns the offset."""
        return await self._append(self.markers_of(partition), key, value, None)

    def markers_of(self, partition: int) -> TopicPartition:
        """The marker partition that serves a partition of the topic."""
        return TopicPartition(TXN_MARKERS, system_partition(self.at(partition), MARKER_PARTITIONS))

    async def close(self) -> None:
        """Closes the writer."""
        await self._writer.close()

    async def _mark(
        self,
        partition: int,
        txn: TxnId,
        *,
        committed: bool,
        end_offset: int | None,
        topic_id: bytes | None = None,
    ) -> None:
        data = self.at(partition)
        end = None if end_offset is None else EndOffset(end_offset)
        marker = Marker(data, txn, committed, EndOffset(0), end, 0, topic_id or self._topic_id)
        await self.write_marker_bytes(partition, encode_key(data, txn), encode_value(marker))

    async def _append(
        self,
        data: TopicPartition,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]] | None,
    ) -> int:
        delivered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def settle(error: ConnectorError | None, offset: int) -> None:
            if error is None:
                delivered.set_result(offset)
            else:
                delivered.set_exception(error)

        self._writer.append(data, value, settle, key=key, headers=headers)
        return await delivered
