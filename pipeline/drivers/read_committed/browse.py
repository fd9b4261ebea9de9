"""Reads a few records of a partition with what readers of committed data do with each of them.

*Source*: docs/protocols D1, D2, D3, D4, F2.

*Invariants*: what is read is bounded by offsets and bytes. A coordinated outcome is that of the
read-committed machine, a native one that of the client's own reader of committed records.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.readers import Fetching, LogReader, TimedRecord
from stilltide.pipeline.core.read_committed.machine import PartitionFilter, RecordVerdict
from stilltide.pipeline.core.status.asks import BYTES_MAX, WHOLE_BYTES_MAX
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.txn_headers import txns_of
from stilltide.pipeline.drivers.snapshots.outcomes import FollowedOutcomes, TopicOutcomes
from stilltide.pipeline.errors import RefusedError
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId

WINDOW_OFFSETS = 2000
"""Offsets that are read at a time."""

WINDOW_BYTES = 8 * 1024 * 1024
"""Bytes of keys, values and headers after which a window ends."""


class BrowsedRecord(TimedRecord):
    """A record with the first bytes of its key and value, so that a window takes little memory.

    Attributes:
        key_bytes: length of the whole key.
        value_bytes: length of the whole value.
    """

    key_bytes: int
    value_bytes: int

    @classmethod
    def of(cls, record: TimedRecord, bytes_max: int = BYTES_MAX) -> "BrowsedRecord":
        """The same record, with so many bytes of its key and value."""
        key, value = record.key, record.value
        cut = record._replace(key=key and key[:bytes_max], value=value and value[:bytes_max])
        browsed = cls(*cut)
        browsed.timestamp_ms = record.timestamp_ms
        browsed.key_bytes, browsed.value_bytes = len(key or b""), len(value or b"")
        return browsed

    @property
    def size_bytes(self) -> int:
        """Length of the whole key and value, and of the headers."""
        headers = sum(len(name) + len(value or b"") for name, value in self.headers or ())
        return self.key_bytes + self.value_bytes + headers


class Judged(NamedTuple):
    """A record, its transaction as in `txns_of`, and what is known of it.

    Attributes:
        record: the record.
        txn: 16 bytes of its transaction; None: none; empty: its header is malformed.
        verdict: what readers of committed data do with it.
        native: whether a native transaction has aborted it, or an open one may hide it.
    """

    record: BrowsedRecord
    txn: bytes | None
    verdict: RecordVerdict
    native: bool


class BrowsedWindow(NamedTuple):
    """The records of a part of a partition.

    Attributes:
        log_start, last_stable, high_watermark: the ends of the partition as of the reading.
        start, end: the offsets that were read.
        max_read_position: M of the snapshot; None: there is none.
        judged: the records, by offset.
    """

    log_start: Offset
    last_stable: EndOffset
    high_watermark: EndOffset
    start: Offset
    end: EndOffset
    max_read_position: EndOffset | None
    judged: tuple[Judged, ...]


class RecordBrowser:
    """Reads windows of one topic, one at a time; evidence is read on with each window.

    Args:
        connector: the cluster.
        admin: admin client of the same cluster; the caller closes it.
        topic: the topic.
    """

    def __init__(self, connector: Connector, admin: LogAdmin, topic: str) -> None:
        self._admin = admin
        self._topic = topic
        self._outcomes = FollowedOutcomes(connector, [topic])
        self._all = connector.reader(
            "browse", committed=False, timestamps=True, fetching=Fetching.SCANNING
        )
        self._committed = connector.reader("browse-committed", fetching=Fetching.SCANNING)

    async def window(
        self, partition: int, start: int | None, *, only: bool = False
    ) -> BrowsedWindow:
        """The records from an offset on, or the last ones; an offset outside the log is moved.

        With `only` it is one offset, which may hold no record, and more bytes of what is there.

        Raises:
            RefusedError: there is no such partition.
            OffsetOutOfRangeError: records were deleted meanwhile.
            Errors of `FollowedOutcomes.read_on`.
        """
        data = TopicPartition(self._topic, partition)
        evidence = await self._outcomes.read_on()
        stable = next((it for it in evidence.data if it.data == data), None)
        if stable is None:
            raise RefusedError(
                f"there is no partition {data.partition}",
                hint="partitions are counted from 0",
                topic=data.topic,
            )
        high = (await self._admin.end_offsets([data])).get(data, stable.end)
        wanted = _within(stable, high, start, 1 if only else WINDOW_OFFSETS)
        records, end = await self._read(wanted, WHOLE_BYTES_MAX if only else BYTES_MAX)
        seen = await self._native_visible(wanted._replace(end=EndOffset(min(end, stable.end))))
        snapshot = evidence.snapshots.get(data)
        return BrowsedWindow(
            stable.start,
            stable.end,
            high,
            wanted.start,
            end,
            snapshot.end.max_read_position if snapshot else None,
            tuple(_judged(records, filter_of(evidence, data, wanted.start), seen, stable.end)),
        )

    async def close(self) -> None:
        """Releases the readers."""
        await self._outcomes.close()
        await self._all.close()
        await self._committed.close()

    async def _read(
        self, wanted: OffsetRange, bytes_max: int
    ) -> tuple[list[BrowsedRecord], EndOffset]:
        """The records until the window is full, and where it ends."""
        browsed: list[BrowsedRecord] = []
        size = 0
        async with aclosing(scan(self._all, [wanted])) as batches:
            async for records in batches:
                for record in records:
                    assert isinstance(record, TimedRecord)
                    browsed.append(BrowsedRecord.of(record, bytes_max))
                    size += browsed[-1].size_bytes
                    if size >= WINDOW_BYTES:
                        self._all.pause([wanted.data])  # else it reads ahead while nobody looks
                        return browsed, EndOffset(record.offset + 1)
        return browsed, wanted.end

    async def _native_visible(self, wanted: OffsetRange) -> set[int]:
        """Offsets of the records that the client's reader of committed records returns."""
        return {it.offset async for records in scan(self._committed, [wanted]) for it in records}


def filter_of(
    evidence: TopicOutcomes, data: TopicPartition, position: Offset
) -> PartitionFilter[None]:
    """The filter of a partition from a position on, with all that is known."""
    machine = PartitionFilter[None](position=position, waiting_max=1)
    for marker in evidence.markers:
        if marker.data != data:
            continue
        current = marker.topic_id in (b"", evidence.topic_ids[data.topic])
        if not marker.committed or (current and marker.end_offset is not None):
            machine.marker_read(
                marker.txn.to_bytes(), committed=marker.committed, end_offset=marker.end_offset
            )
    snapshot = evidence.snapshots.get(data)
    if snapshot is not None:
        machine.snapshot_read(snapshot)
        machine.markers_read_to_end()
    return machine


def _judged(
    records: Sequence[BrowsedRecord],
    machine: PartitionFilter[None],
    native_visible: set[int],
    last_stable: EndOffset,
) -> Iterable[Judged]:
    for record, txn in zip(records, txns_of(records), strict=True):
        if record.offset < last_stable and record.offset not in native_visible:
            yield Judged(record, txn, RecordVerdict.ABORTED, native=True)
            continue
        verdict = machine.verdict(record.offset, txn)
        if record.offset >= last_stable and verdict is RecordVerdict.VISIBLE:
            yield Judged(record, txn, RecordVerdict.UNDECIDED, native=True)
        else:
            yield Judged(record, txn, verdict, native=False)


def _within(stable: OffsetRange, high: EndOffset, start: int | None, offsets: int) -> OffsetRange:
    """The window that begins at an offset of the log, or else ends at the log's end."""
    if start is None or start >= high:
        start = high - offsets
    begin = Offset(max(stable.start, start))
    return OffsetRange(stable.data, begin, EndOffset(min(high, begin + offsets)))


async def find_first_undecided(
    reader: LogReader, reads: Sequence[OffsetRange], outcomes: TopicOutcomes
) -> dict[TopicPartition, tuple[Offset, TxnId]]:
    """The first undecided record of each range that has one, and its transaction.

    Reads some hundred thousand records in a second.

    Args:
        reader: of committed records of native transactions; gets a new assignment.
        reads: ranges at or below the last stable offsets.
        outcomes: the evidence.

    Raises:
        OffsetOutOfRangeError: records of a range were deleted meanwhile.
        RetriableError: the broker is away.
    """
    marked = {(marker.data, marker.txn.to_bytes()) for marker in outcomes.markers}
    undecided: dict[TopicPartition, tuple[Offset, TxnId]] = {}
    async for records in scan(reader, reads):
        for record, txn in zip(records, txns_of(records), strict=True):
            data = record.data
            if not txn or data in undecided or (data, txn) in marked:
                continue  # not txn: plain, or malformed, which no outcome decides
            snapshot, named = outcomes.snapshots.get(data), TxnId.from_bytes(txn)
            if snapshot is None or snapshot.visible(record.offset, *named) is None:
                undecided[data] = record.offset, named
    return undecided
