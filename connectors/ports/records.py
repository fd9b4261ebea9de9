"""Records that readers return and writers accept, and how readers fetch them."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from stilltide.schemas.headers import Headers, txn_header
from stilltide.schemas.values import EndOffset, Offset, TopicPartition, TxnId


class Fetching(Enum):
    """The way in which a reader fetches.

    TAILING: returns records at once, and `EndReached` within 0.2 s.
    SCANNING: returns `EndReached` at once, too, and fetches 512 KiB at a time, since a scan may
        need few records; waiting at a log's end costs reader and broker much more.
    IN_BULK: returns records up to 0.1 s later, many at a time, at much less cost.

    Readers of one kind may share a client, except those that scan.
    """

    TAILING = "tailing"
    SCANNING = "scanning"
    IN_BULK = "in bulk"


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
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def txn(self) -> TxnId | None:
        """The record's coordinated transaction, None for a plain record.

        Raises:
            MalformedHeaderError: the `txn` header is null, not 16 bytes, or there twice.
        """
        txn = txn_header(self.headers)
        return None if txn is None else TxnId.from_bytes(txn)

    @property
    def deliveries(self) -> int:
        """How often this member of the group was given the record, this time included."""
        return 1


class RedeliveredRecord(Record):
    """A record that this member of a group was given before."""

    _deliveries: int

    @classmethod
    def of(cls, record: Record, deliveries: int) -> "RedeliveredRecord":
        """The same record, delivered for the given time."""
        again = cls(*record)
        again._deliveries = deliveries
        return again

    @property
    def deliveries(self) -> int:
        """See `Record.deliveries`."""
        return self._deliveries


class TimedRecord(Record):
    """A record with its timestamp, which a reader returns only on demand, since it takes time.

    Attributes:
        timestamp_ms: the record's timestamp, milliseconds since 1970.
    """

    timestamp_ms: int

    @classmethod
    def at(cls, record: Record, timestamp_ms: int) -> "TimedRecord":
        """The same record, with its timestamp."""
        timed = cls(*record)
        timed.timestamp_ms = timestamp_ms
        return timed


class EndReached(NamedTuple):
    """The reader's position is `end_offset`; every readable record below it has been returned.

    The position passes over control records and aborted native records.
    """

    topic: str
    partition: int
    end_offset: EndOffset

    @property
    def data(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


class Run(NamedTuple):
    """Consecutive records of one partition, at least one, with offsets and headers as columns."""

    data: TopicPartition
    offsets: Sequence[Offset]
    headers: Sequence[Headers | None]
    records: Sequence[Record]


class NewRecord(NamedTuple):
    """A record to be written."""

    data: TopicPartition
    key: bytes | None
    value: bytes | None
