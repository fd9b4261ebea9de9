"""Counts and logs records that are passed over because no owner can use them.

*Source*: docs/protocols B6 (foreign entries of logs), B10 (foreign and damaged records of compacted
topics), C10 (records that are no requests).
*Invariants*: a process counts each offset once, also when records are read or delivered again. A
damaged record that may be the last one of its key is never passed over.
"""

from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

from stilltide.connectors.ports.admin import LogAdmin
from stilltide.connectors.ports.connector import Connector, closing
from stilltide.connectors.ports.readers import Fetching, Record
from stilltide.pipeline.drivers.shared.log_scan import scan
from stilltide.pipeline.drivers.shared.outages import OutageGuard
from stilltide.pipeline.logging import get_logger
from stilltide.schemas.errors import DecodeError, ForeignKeyError, damaged_at
from stilltide.schemas.topics import TXN_MARKERS
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition

log = get_logger(__name__)

SHOWN_BYTES = 32
"""Bytes of a record that its log line shows."""

LINES_MAX = 100
"""Lines for one partition; further records are only counted, so that they cannot fill the disk."""


class Counter(Protocol):
    """A counter of prometheus_client, which applications do not load."""

    def inc(self) -> None:
        """Counts one."""
        ...


class PassedOver:
    """Counts and logs records; `add` is called in offset order for each partition.

    Args:
        event: name of the log event.
        counter: finds the counter of a partition; None: there is none, as in applications.

    Attributes:
        counter: as above; a worker sets the counter of its cluster.
    """

    def __init__(
        self, event: str, counter: Callable[[TopicPartition], Counter] | None = None
    ) -> None:
        self.counter = counter
        self._event = event
        self._next: dict[TopicPartition, int] = {}  # records below were counted
        self._lines: dict[TopicPartition, int] = {}

    def add(self, data: TopicPartition, offset: Offset, value: bytes | None, why: str) -> None:
        """A record was passed over; a record that was added before is ignored."""
        if offset < self._next.get(data, 0):
            return
        self._next[data] = offset + 1
        if self.counter is not None:
            self.counter(data).inc()
        lines = self._lines[data] = self._lines.get(data, 0) + 1
        if lines > LINES_MAX:
            return
        begins = None if value is None else repr(value[:SHOWN_BYTES])  # any bytes, so escaped
        log.warning(
            self._event,
            topic=data.topic,
            partition=data.partition,
            offset=offset,
            begins=begins,
            size_bytes=len(value or b""),
            why=why,
            **({"further": "only counted"} if lines == LINES_MAX else {}),
        )


def hand_over(
    take: Callable[[bytes | None], None],
    data: TopicPartition,
    offset: Offset,
    value: bytes | None,
    *,
    undecodable: PassedOver,
) -> None:
    """Gives a record of requests to `take` of an owner; passes over an undecodable one (C10).

    The sender of such a record is unknown and gets no answer; the owner goes on serving others.
    """
    try:
        take(value)
    except DecodeError as error:
        undecodable.add(data, offset, value, error.primary)


_foreign_records: WeakKeyDictionary[Connector, PassedOver] = WeakKeyDictionary()


def foreign_records(connector: Connector) -> PassedOver:
    """The records of compacted topics that readers of this connector have passed over (B10)."""
    passed_over = _foreign_records.get(connector)
    if passed_over is None:
        passed_over = _foreign_records[connector] = PassedOver("foreign_record_passed_over")
    return passed_over


async def pass_over(
    connector: Connector, record: Record, error: DecodeError, *, before: EndOffset | None = None
) -> None:
    """Passes over a record of a compacted topic that does not decode, if nothing depends on it.

    That is a record with a foreign key, and a damaged one with a later record of the same key, for
    compaction would have removed the damaged one (B10).

    Args:
        connector: the cluster.
        record: the record.
        error: why the record does not decode.
        before: end of the offsets where a later record counts; None: the end of the partition.

    Raises:
        DecodeError: the record is the last one of its key; names its place and the next step.
    """
    if not isinstance(error, ForeignKeyError) and not await _superseded(connector, record, before):
        raise damaged_at(error, record.topic, record.partition, record.offset)
    foreign_records(connector).add(record.data, record.offset, record.value, error.primary)


async def _superseded(connector: Connector, record: Record, before: EndOffset | None) -> bool:
    """Whether a later record has the same key."""
    async with closing(connector.admin()) as admin:
        return await OutageGuard(admin).call(_later, connector, admin, record, before)


async def _later(
    connector: Connector, admin: LogAdmin, record: Record, before: EndOffset | None
) -> bool:
    committed = record.topic != TXN_MARKERS  # markers are read uncommitted (B10)
    ends = await admin.end_offsets([record.data], committed=committed)
    end = ends.get(record.data, EndOffset(0))
    after = OffsetRange(
        record.data, Offset(record.offset + 1), end if before is None else min(before, end)
    )
    async with closing(
        connector.reader("later-records", committed=committed, fetching=Fetching.SCANNING)
    ) as reader:
        async for records in scan(reader, [after]):
            if any(one.key == record.key for one in records):
                return True
    return False
