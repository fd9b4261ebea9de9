"""Records as readers return and writers take them."""

from collections.abc import Sequence
from typing import NamedTuple

from stilltide.schemas.headers import Headers, txn_header
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId


class Record(NamedTuple):
    """A record as read. `headers` keep order and repeats; None when there are none."""

    topic: str
    partition: int
    offset: Offset
    key: bytes | None
    value: bytes | None
    headers: Headers | None

    @property
    def data(self) -> TopicPartition:
        """The partition it lies in."""
        return TopicPartition(self.topic, self.partition)

    @property
    def txn(self) -> TxnId | None:
        """The coordinated transaction it was written in, None for a plain record.

        Raises:
            MalformedHeaderError: its `txn` header is null, not 16 bytes, or not the only one.
        """
        txn = txn_header(self.headers)
        return None if txn is None else TxnId.from_bytes(txn)


class TimedRecord(Record):
    """A record as a reader returns it that was asked for times, which not everybody pays for.

    Attributes:
        timestamp_ms: when it was written, milliseconds since 1970.
    """

    timestamp_ms: int

    @classmethod
    def at(cls, record: Record, timestamp_ms: int) -> "TimedRecord":
        """The same record, with its time."""
        timed = cls(*record)
        timed.timestamp_ms = timestamp_ms
        return timed


class EndReached(NamedTuple):
    """The reader stands at `end_offset`; nothing readable lay below it that was not returned.

    Passes over offsets without a readable record (control records, aborted native data).
    """

    topic: str
    partition: int
    end_offset: EndOffset

    @property
    def data(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class Run(NamedTuple):
    """Consecutive records of one partition, at least one, and two of their columns."""

    data: TopicPartition
    offsets: Sequence[Offset]
    headers: Sequence[Headers | None]
    records: Sequence[Record]


class NewRecord(NamedTuple):
    """A record to be written."""

    data: TopicPartition
    key: bytes | None
    value: bytes | None
