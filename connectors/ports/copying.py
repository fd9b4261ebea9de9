"""Ports of a link: a reader that gives columns, and a writer whose transaction stays open.

*Source*: docs/protocols H1, H2, H3. Both handle many records at a time: no call is for a single
record.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stilltide.connectors.ports.admin import NativeTransactions
from stilltide.connectors.ports.connector import TopicConnector
from stilltide.connectors.ports.readers import EndReached, NewRecord
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class Columns(NamedTuple):
    """Records of one partition by ascending offset, as columns of one length >= 1.

    Attributes:
        data: the partition.
        offsets: the records' offsets.
        headers: the records' headers, in order and with repeats; None for a record without any.
        keys: the records' keys; None for a record without a key.
        values: the records' values; None for a tombstone.
        timestamps_ms: the records' timestamps, milliseconds since 1970.
    """

    data: TopicPartition
    offsets: Sequence[Offset]
    headers: Sequence[Headers | None]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]


class ColumnReader(Protocol):
    """A `LogReader` of committed native data that returns columns."""

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """As `LogReader.assign`."""
        ...

    async def read(self) -> Sequence[Columns | EndReached]:
        """As `LogReader.read`."""
        ...

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """As `LogReader.pause`."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """As `LogReader.resume`."""
        ...

    async def close(self) -> None:
        """As `LogReader.close`."""
        ...


class Copies(NamedTuple):
    """Records to be written to one partition, in order, as columns of one length.

    Columns, because a link pays for each object that it makes for a record.

    Attributes:
        keys: the records' keys; None for a record without a key.
        values: the records' values; None for a tombstone.
        timestamps_ms: the records' timestamps, milliseconds since 1970.
        headers: the records' headers, in order and with repeats.
    """

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]
    headers: Sequence[Sequence[tuple[str, bytes | None]]]


class Span:
    """The offsets that copies got; grows with each delivery report, complete after `flush`.

    Attributes:
        first: offset of the first copy; None until its report, and without any copy.
        end: end offset of the last copy; None in the same cases.
    """

    __slots__ = ("end", "first")

    def __init__(self) -> None:
        self.first: Offset | None = None
        self.end: EndOffset | None = None


class CopyWriter(Protocol):
    """Writes native transactions one after the other; records are added while one is open.

    Of all writers with one transactional id only the last that called `fence` can write. After any
    error `fence` is needed again, and committed readers never see the records of the open
    transaction. The broker aborts a transaction that is open for longer than `COPY_TIMEOUT_S`.

    Every method except `close` raises:
        FencedError: another writer has taken the transactional id.
        FatalError: a record can never be written, `fence` was not called, or the writer is closed.
        RetriableError: the broker is away, or the outcome is unknown; `fence` decides it.

    `begin` and `copy` may raise `AnotherWriterError`: what was not committed is to be copied again
    by another writer of the same connector.
    """

    async def fence(self) -> None:
        """Takes the transactional id from its present writer.

        Once it returns, every transaction that was begun under this id is either committed or
        aborted.
        """
        ...

    async def begin(self) -> None:
        """Begins a transaction; none may be open already."""
        ...

    async def copy(self, data: TopicPartition, copies: Copies, span: Span) -> None:
        """Queues copies in order; waits only while the queue is full.

        `span` grows by the offsets that the copies get; several calls for one partition may share
        a span.
        """
        ...

    async def flush(self) -> None:
        """Returns when every copy is durable, though not committed, and all spans are complete."""
        ...

    async def commit(self, records: Sequence[NewRecord]) -> None:
        """Writes `records` after the copies, and commits the transaction."""
        ...

    async def close(self) -> None:
        """Aborts the open transaction, unless another writer took the id; safe to call twice."""
        ...


COPY_TIMEOUT_S = 10.0
"""Longest time for which a dead link's transaction holds back readers of the target (H2)."""


class LinkConnector(TopicConnector, Protocol):
    """A connector of a cluster that links read from and write to, and whose topics they alter."""

    def column_reader(self, client_id: str) -> ColumnReader:
        """A reader of columns of committed native data."""
        ...

    def copy_writer(self, transactional_id: str) -> CopyWriter:
        """A writer of large native transactions."""
        ...

    def native_transactions(self, client_id: str) -> NativeTransactions | None:
        """The brokers' view of their transactions; None: transactions of this broker never hang."""
        ...
