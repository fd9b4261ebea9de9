"""Ports: what the drivers ask of a log system, and what they may rely on.

Two implementations keep the same promises and pass the same contract suite (`tests/contract`):
`connectors.kafka` and the verified fake `connectors.memory`.

Every method that waits does so on the caller's asyncio loop; callbacks run on that loop too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from connectors.errors import ConnectorError
from connectors.fetching import Fetching
from schemas.batches import AbortedTransaction, Batch
from schemas.headers import Headers, txn_header
from schemas.topics import BrokerFigures, TopicSpec
from schemas.values import EndOffset, Offset, TopicPartition, TxnId


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


Delivered = Callable[[ConnectorError | None, int], None]
"""Called once per append with (error, offset).

Without error the record is durable at `offset`; -1 means durable at an unknown offset (an
idempotent retry). With `RetriableError` the outcome is unknown: it may still land (A5).
"""


class LogWriter(Protocol):
    """Appends records; order per partition = order of calls."""

    def append(
        self,
        data: TopicPartition,
        value: bytes | None,
        delivered: Delivered,
        *,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
    ) -> None:
        """Queues one record and returns at once; `delivered` is never called within it.

        A partition that does not exist, or a record too large for its topic, is reported as
        `FatalError`.

        Raises:
            RetriableError: the local queue is full: await `room()` and call again.
            FatalError: the record can never be written (too large), or the writer is closed.
        """
        ...

    async def room(self) -> None:
        """Returns when the local queue has room again."""
        ...

    def hurry(self) -> None:
        """Sends what is queued without lingering, and returns at once.

        The reports of a writer that was hurried may come in another order than its appends.
        """
        ...

    async def flush(self, timeout_s: float) -> bool:
        """Waits for every queued record; False when some are still under way."""
        ...

    async def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then fails what is left with `RetriableError`; no append afterwards."""
        ...


class NewRecord(NamedTuple):
    """A record to be written."""

    data: TopicPartition
    key: bytes | None
    value: bytes | None


class TransactionalWriter(Protocol):
    """Writes sets of records whole or not at all, by native Kafka transactions.

    Of all writers with one transactional id only the last that called `fence` can write. After any
    error of `write`, `fence` comes first again.
    """

    async def fence(self) -> None:
        """Takes the transactional id from whoever has it; before the first `write`.

        Once it returns, every set that was begun under this id is there whole, or will never be.

        Raises:
            RetriableError: the broker is away; call again.
        """
        ...

    async def write(self, records: Sequence[NewRecord]) -> None:
        """Writes all of them in one transaction, in order per partition, and waits for that.

        Raises:
            FencedError: another writer has taken the id; none of them is there.
            FatalError: one can never be written (too large, no such partition), `fence` was not
                called, or the writer is closed; none of them is there.
            RetriableError: they may be there; `fence` decides it.
        """
        ...

    async def close(self) -> None:
        """Waits for what is under way; a waiting `write` ends as it may. Safe to call twice."""
        ...


class LogReader(Protocol):
    """Reads partitions that the caller names, each in offset order."""

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Replaces what is read; each partition is read from its position on, none is paused.

        From the call on, no record of the old assignment is returned.
        A position below the log start is an error of the next `read`, never moved silently.
        """
        ...

    async def read(self) -> Sequence[Record | EndReached]:
        """The next records, at least one item; waits for it. One caller at a time.

        `EndReached` comes once each time a partition's end is met.

        Raises:
            RetriableError: the broker is away; call again.
            OffsetOutOfRangeError: a position is outside its log, at once or because records
                were deleted meanwhile: until the next `assign`, by every call.
            FatalError: topic gone, not authorised: likewise; or the reader is closed.
        """
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching within a moment; what was fetched until then may still be returned."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches paused partitions again from where they stand."""
        ...

    async def close(self) -> None:
        """Stops; a waiting `read` raises `FatalError`. Safe to call twice."""
        ...


COMMIT_METADATA_CHARS_MAX = 4095
"""Longest metadata of a committed offset with Kafka's defaults (`offset.metadata.max.bytes`)."""


NO_METADATA: Mapping[TopicPartition, str] = MappingProxyType({})
"""A plain commit."""


class Committed(NamedTuple):
    """What a group has committed for a partition: the next offset to read, and free text."""

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

        `revoked` is called when partitions are taken away, before `assigned` for what follows;
        a rebalance takes all of them. Neither is called by `close`.
        """
        ...

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """As `LogReader.assign`, within what the group has given, until the next rebalance.

        Raises:
            FencedError: the group has not given this member one of the partitions.
        """
        ...

    async def read(self) -> Sequence[Run | EndReached]:
        """As `LogReader.read`; records come in runs, which cost less to handle."""
        ...

    def read_now(self) -> Sequence[Run | EndReached]:
        """What can be had without waiting, some hundred records; empty: only `read` can tell.

        Not while a `read` waits. Who calls it again and again lets the loop run now and then.
        Raises as `read` does, or leaves it to `read`.
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

    def committed(self, data: TopicPartition) -> Committed | None:
        """What the group had committed for a partition when it was assigned here.

        Of one moment with the position that `assigned` was told; commits made since are not in it.
        None: nothing was committed, or the partition is not assigned.
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
"""Of one fetch of batches; larger ones are not faster."""


class FetchedBatches(NamedTuple):
    """One answer of a partition's leader; see `BatchReader.fetch`.

    Attributes:
        batches: ascending, whole, none missing between them.
        aborted: in any order; empty for an uncommitted fetch.
        log_start: of that moment, like the two below.
        last_stable_offset: no transaction that was open had a record below it.
        high_watermark: every record below it is on all in-sync replicas.
    """

    batches: Sequence[Batch]
    aborted: Sequence[AbortedTransaction]
    log_start: Offset
    last_stable_offset: EndOffset
    high_watermark: EndOffset


class BatchReader(Protocol):
    """Reads record batches as they lie in the log: control batches too, aborted data too.

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
        """The batches from the one that holds `position` on, or the first behind it.

        None of them means that `position` was at the end: the last stable offset when
        `committed`, else the high watermark; the broker was given 0.1 s for more. Each batch has
        passed its checksum. The aborted list names every transaction that has a batch among
        them and aborted; it may name more. Calls may overlap.

        Args:
            data: the partition.
            position: at or above the log start; the first batch may begin below it.
            committed: what lies at or above the last stable offset is left out.
            bytes_max: of batches, in one answer; a larger one comes alone.

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


class TopicDescription(NamedTuple):
    """A topic that exists; `replica_count` is that of the partition with the fewest."""

    name: str
    topic_id: bytes
    partition_count: int
    replica_count: int


class LogAdmin(Protocol):
    """Topics and offsets."""

    async def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Creates what is missing and verifies the rest; safe to call at once from several.

        Raises:
            FatalError: a topic exists with other partitions or configs; names both. Or a new one
                would have more replicas than the cluster has brokers.
            RetriableError: the broker cannot be reached within the time-out; names its address.
        """
        ...

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicDescription]:
        """The topics that exist, by name; a missing one is not in the answer."""
        ...

    async def topic_configs(self, names: Sequence[str]) -> dict[str, Mapping[str, str | None]]:
        """The configs of the topics that exist, by name; those at their defaults too."""
        ...

    async def end_offsets(
        self, partitions: Sequence[TopicPartition], *, committed: bool = False
    ) -> dict[TopicPartition, EndOffset]:
        """End offsets: high watermarks, or last stable offsets when `committed`.

        Read after the call began. A partition that does not exist is not in the answer.
        """
        ...

    async def start_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """Log start offsets; a partition that does not exist is not in the answer."""
        ...

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Moves each log's start up to an offset; one at or below the start changes nothing.

        Once it returns, `start_offsets` says so. After an error some may have been moved.

        Raises:
            OffsetOutOfRangeError: an offset above the end of its log.
            FatalError: a partition does not exist, or its topic has no delete policy.
            RetriableError: the broker is away; it may have been done.
        """
        ...

    async def cluster_id(self) -> str:
        """What the cluster itself is named by; no two clusters share it."""
        ...

    async def broker_figures(self) -> BrokerFigures:
        """How many brokers are up, and how many replicas they give to topics by default."""
        ...

    async def list_topics(self) -> list[str]:
        """Names of all topics that are not Kafka's own, ascending."""
        ...

    async def topic_overrides(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Configs that were set on the topics themselves, by name; a missing one is not there."""
        ...

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Has a topic have at least so many partitions.

        Raises:
            FatalError: the topic does not exist.
            RetriableError: the broker is away; it may have been done.
        """
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...


class Connector(Protocol):
    """Makes writers, readers and admins of one cluster."""

    def writer(self, client_id: str, *, linger_ms: float = 0) -> LogWriter:
        """A writer: idempotent, acknowledged by all in-sync replicas."""
        ...

    def transactional_writer(self, transactional_id: str) -> TransactionalWriter:
        """A writer of whole sets; see there."""
        ...

    def reader(
        self,
        client_id: str,
        *,
        committed: bool = True,
        timestamps: bool = False,
        fetching: Fetching = Fetching.TAILING,
    ) -> LogReader:
        """A reader of named partitions; `committed` hides open and aborted native data.

        With `timestamps` its records are `TimedRecord`.
        """
        ...

    def group_reader(self, client_id: str, group: str, *, from_start: bool = True) -> GroupReader:
        """A group's reader of committed native data; starts at the log start, or its end."""
        ...

    def admin(self) -> LogAdmin:
        """An admin."""
        ...
