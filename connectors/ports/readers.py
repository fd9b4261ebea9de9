"""Records, and ports of readers: by partition, by consumer group, and of raw batches.

Writers accept records, too. Readers say how they fetch.

`check_metadata` is the check of every connector's commits; *Source*: Kafka's
`offset.metadata.max.bytes`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, cast

from stilltide.connectors.errors import FatalError
from stilltide.schemas.headers import Headers, txn_header
from stilltide.schemas.native.transactions import AbortedTransaction, Batch
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


class TimedRecord(Record):
    """A record with its timestamp, which a reader returns only on demand, since it takes time.

    Attributes:
        timestamp_ms: the record's timestamp, milliseconds since 1970; -1 if it has none.
    """

    timestamp_ms: int = -1

    @classmethod
    def at(cls, record: Record, timestamp_ms: int) -> "TimedRecord":
        """The same record, with its timestamp."""
        timed = cls(*record)
        timed.timestamp_ms = timestamp_ms
        return timed


class RedeliveredRecord(TimedRecord):
    """A record that this member of a group was given before, with its timestamp if it had that."""

    _deliveries: int

    @classmethod
    def of(cls, record: Record, deliveries: int) -> "RedeliveredRecord":
        """The same record, delivered for the given time."""
        again = cls(*record)
        again._deliveries = deliveries
        if isinstance(record, TimedRecord):
            again.timestamp_ms = record.timestamp_ms
        return again

    @property
    def deliveries(self) -> int:
        """See `Record.deliveries`."""
        return self._deliveries


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


class FetchedRecord(Protocol):
    """A record as a client library holds it, with its fields as calls: confluent-kafka's `Message`.

    Columns of many of them take less time than a `Record` for each.
    """

    def offset(self) -> Any:
        """See `Record.offset`."""
        ...

    def key(self) -> Any:
        """See `Record.key`."""
        ...

    def value(self) -> Any:
        """See `Record.value`."""
        ...

    def headers(self) -> Any:
        """See `Record.headers`."""
        ...

    def timestamp(self) -> tuple[int, int]:
        """The kind of the timestamp (Kafka's number), and milliseconds since 1970."""
        ...


class WrappedRecord:
    """A `FetchedRecord` of a `Record` that is made already."""

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record

    def offset(self) -> Offset:
        """See `FetchedRecord.offset`."""
        return self.record.offset

    def key(self) -> Any:
        """See `FetchedRecord.key`."""
        return self.record.key

    def value(self) -> Any:
        """See `FetchedRecord.value`."""
        return self.record.value

    def headers(self) -> Headers | None:
        """See `FetchedRecord.headers`."""
        return self.record.headers

    def timestamp(self) -> tuple[int, int]:
        """See `FetchedRecord.timestamp`; -1 of a record that was read without its timestamp."""
        return 0, self.record.timestamp_ms if isinstance(self.record, TimedRecord) else -1


def column(fetched: Sequence[FetchedRecord], field: str) -> list[Any]:
    """One field of each record: the name of a method of `FetchedRecord`."""
    kinds = set(map(type, fetched))
    if len(kinds) == 1:  # at a third of the cost of a loop
        return [*map(getattr(kinds.pop(), field), fetched)]
    return [getattr(record, field)() for record in fetched]


def timestamps_ms(fetched: Sequence[FetchedRecord]) -> list[int]:
    """The timestamp of each record, milliseconds since 1970; -1 of one that has none."""
    return [at_ms for _, at_ms in column(fetched, "timestamp")]


record_of = cast(
    "Callable[[tuple[Any, ...]], Record]",
    partial(tuple.__new__, Record),  # pyright: ignore[reportUnknownMemberType]
)
"""Makes a `Record` at half the cost of `Record(*fields)`."""


def records_of(
    data: TopicPartition, fetched: Sequence[FetchedRecord], *, timestamps: bool = False
) -> list[Record]:
    """Records of one partition; `TimedRecord` with `timestamps`."""
    columns = (column(fetched, field) for field in ("offset", "key", "value", "headers"))
    records = [*map(record_of, zip(repeat(data.topic), repeat(data.partition), *columns))]
    if not timestamps:
        return records
    return [*map(TimedRecord.at, records, timestamps_ms(fetched))]


class Run(NamedTuple):
    """Consecutive records of one partition, at least one, with offsets and headers as columns."""

    data: TopicPartition
    offsets: Sequence[Offset]
    headers: Sequence[Headers | None]
    fetched: Sequence[FetchedRecord]

    @property
    def records(self) -> list[Record]:
        """The records; each call makes them."""
        return records_of(self.data, self.fetched)


class NewRecord(NamedTuple):
    """A record to be written."""

    data: TopicPartition
    key: bytes | None
    value: bytes | None


class LogReader(Protocol):
    """Reads partitions that the caller assigns, each in offset order."""

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces the assignment: reads each partition from its position on, and pauses none.

        From the call on, no record of the old assignment is returned.
        A position below the log start is an error of the next `read`, never a silent move.
        """
        ...

    async def read(self) -> Sequence[Record | EndReached]:
        """Waits for the next records and returns at least one item. One caller at a time.

        `EndReached` comes once each time that the reader meets a partition's end.

        Raises:
            RetriableError: the broker is away; call again.
            OffsetOutOfRangeError: a position is outside its log, at once or because records were
                deleted meanwhile; every call raises this until the next `assign`.
            FatalError: topic gone or not authorised, by every call until the next `assign`; or the
                reader is closed.
        """
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching soon; records that were fetched until then may still be returned."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from their positions."""
        ...

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        ...


COMMIT_METADATA_CHARS_MAX = 4095


"""Longest metadata of a commit with Kafka's default `offset.metadata.max.bytes`."""


NO_METADATA: Mapping[TopicPartition, str] = MappingProxyType({})


"""The metadata of a commit of offsets only."""


class Committed(NamedTuple):
    """A group's commit for a partition: the next offset to read, and its metadata (text)."""

    offset: Offset
    metadata: str


class GroupReader(Protocol):
    """A reader whose partitions come from a consumer group."""

    async def subscribe(
        self,
        topics: Sequence[str],
        *,
        assigned: Callable[[Mapping[TopicPartition, Offset]], None],
        revoked: Callable[[Sequence[TopicPartition]], None],
    ) -> None:
        """Joins the group; `assigned` is called with positions before their first record.

        `revoked` is called when partitions are taken away, before `assigned` is called for the new
        assignment; a rebalance takes all of them away. `close` calls neither.
        """
        ...

    async def change_topics(self, topics: Sequence[str]) -> None:
        """Subscribes to other topics than before, which causes a rebalance; perhaps to none.

        From the call on, no record is returned until `assigned` is called. A topic that was not
        among those of the last call is read from its start where the group has no commit.
        """
        ...

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """As `LogReader.assign`, for partitions that the group has given; until the next rebalance.

        Raises:
            FencedError: the group has not given this member one of the partitions.
        """
        ...

    async def read(self) -> Sequence[Run | EndReached]:
        """As `LogReader.read`, but with records in runs, which take less time to handle."""
        ...

    def read_now(self) -> Sequence[Run | EndReached]:
        """Some hundred records that are at hand; empty if only `read` can tell what comes next.

        Not to be called while a `read` waits. A caller that loops over `read_now` must let the
        event loop run now and then. Raises as `read`, or leaves the error to the next `read`.
        """
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """As `LogReader.pause`."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """As `LogReader.resume`."""
        ...

    async def close(self) -> None:
        """As `LogReader.close`; leaves the group."""
        ...

    @property
    def member_id(self) -> str:
        """Kafka's id of this member of the group, as of the last assignment; "" before the first.

        The group's coordinator knows the id while the member is in the group.
        """
        ...

    def committed(self, data: TopicPartition) -> Committed | None:
        """The group's commit for a partition as of the assignment, without later commits.

        The commit and the position given to `assigned` are of the same moment. None: nothing was
        committed, or the partition is not assigned.
        """
        ...

    async def commit(
        self,
        positions: Mapping[TopicPartition, Offset],
        metadata: Mapping[TopicPartition, str] = NO_METADATA,
    ) -> None:
        """Commits, for each partition, the offset of the next record to read, and its metadata.

        The metadata of a partition that `metadata` does not name becomes empty.

        Raises:
            FencedError: the group has not given this member one of the partitions, or no longer.
            FatalError: metadata is longer than `COMMIT_METADATA_CHARS_MAX`; nothing is committed.
            RetriableError: the broker is away.
        """
        ...


FETCH_BYTES = 8 * 1024 * 1024


"""Bytes of one fetch of batches; larger fetches are not faster."""


class FetchedBatches(NamedTuple):
    """One answer of a partition's leader; see `BatchReader.fetch`.

    Attributes:
        batches: the batches in the log's order, complete and without gaps.
        aborted: aborted transactions in any order; empty for an uncommitted fetch.
        log_start: the log start offset when the leader answered.
        last_stable_offset: the offset below which no transaction was open at that time.
        high_watermark: the offset below which all in-sync replicas had every record at that time.
    """

    batches: Sequence[Batch]
    aborted: Sequence[AbortedTransaction]
    log_start: Offset
    last_stable_offset: EndOffset
    high_watermark: EndOffset


class BatchReader(Protocol):
    """Reads record batches as they are in the log, control batches and aborted ones included.

    Only `connectors.kafka` has one: the memory broker keeps records, not batches.
    """

    async def fetch(
        self,
        data: TopicPartition,
        position: Offset,
        *,
        committed: bool = True,
        bytes_max: int = FETCH_BYTES,
    ) -> FetchedBatches:
        """The batches from the one that contains `position` on, or else the next ones.

        An answer without batches means that `position` was at the end for 0.1 s: the last stable
        offset if `committed`, else the high watermark. Each batch has passed its checksum. The
        aborted list names every aborted transaction with a batch in the answer, and may name
        others. Calls may overlap.

        Args:
            data: the partition.
            position: an offset at or above the log start; the first batch may begin below it.
            committed: whether to leave out batches at or above the last stable offset.
            bytes_max: limit of the answer in bytes; a larger batch comes alone.

        Raises:
            RetriableError: no answer within the request time-out: broker or leader away.
            OffsetOutOfRangeError: the log does not hold the position.
            FatalError: no such partition, not authorised, bytes that are no batches of message
                format v2, or the reader is closed.
        """
        ...

    async def close(self) -> None:
        """Ends connections; a waiting `fetch` raises `FatalError`. Safe to call twice."""
        ...


def check_metadata(metadata: Mapping[TopicPartition, str]) -> None:
    """Passes metadata that a broker with default settings takes.

    Raises:
        FatalError: metadata is too long, or not ASCII: of other text brokers count the bytes and
            clients the characters.
    """
    for data, text in metadata.items():
        if len(text) > COMMIT_METADATA_CHARS_MAX or not text.isascii() or "\0" in text:
            raise FatalError(
                f"commit metadata of {len(text)} characters",
                hint=f"ASCII without NUL of at most {COMMIT_METADATA_CHARS_MAX} characters",
                data=data,
            )
