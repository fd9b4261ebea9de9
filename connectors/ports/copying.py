"""Ports of a link: a reader that gives columns, and a writer whose transaction stays open.

*Source*: protocols.md H1-H3. Both are for many records: nothing is called for a single one.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from stilltide.connectors.ports.connector import Connector
from stilltide.connectors.ports.records import EndReached, NewRecord
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


class Columns(NamedTuple):
    """Records of one partition by ascending offset, column by column, all of one length >= 1.

    Attributes:
        data: the partition.
        offsets: where they lie.
        headers: in order, with repeats; None when there are none.
        keys: None for none.
        values: None for a tombstone.
        timestamps_ms: when they were written, milliseconds since 1970.
    """

    data: TopicPartition
    offsets: Sequence[Offset]
    headers: Sequence[Headers | None]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]


class ColumnReader(Protocol):
    """A `LogReader` of committed native data that gives columns."""

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


NewCopy = tuple[bytes | None, bytes | None, int, Sequence[tuple[str, bytes | None]]]
"""Key, value, milliseconds since 1970 and headers of a record to be written: a plain tuple, since
there are many."""


class Span:
    """Within which offsets copies have landed; filled while they do, whole after `flush`.

    Attributes:
        first: of the first copy.
        end: of the last one; both are None until then, and without any copy.
    """

    __slots__ = ("end", "first")

    def __init__(self) -> None:
        self.first: Offset | None = None
        self.end: EndOffset | None = None


class CopyWriter(Protocol):
    """Writes native transactions one after the other, each open while its records come.

    Of all writers with one transactional id only the last that called `fence` can write. After any
    error `fence` comes first again; what the open transaction wrote is then never seen. A
    transaction that is open for longer than `COPY_TIMEOUT_S` is aborted by the broker.

    Raises, each of its methods but `close`:
        FencedError: another writer has taken the id.
        FatalError: a record can never be written, `fence` was not called, or it is closed.
        RetriableError: the broker is away, or nobody knows; `fence` decides it.
    """

    async def fence(self) -> None:
        """Takes the transactional id from whoever has it.

        Once it returns, every transaction that was begun under this id is there whole, or will
        never be.
        """
        ...

    async def begin(self) -> None:
        """Begins a transaction; none may be open."""
        ...

    async def copy(self, data: TopicPartition, copies: Sequence[NewCopy], span: Span) -> None:
        """Queues copies behind those before; waits only while the queue is full.

        `span` grows by where they land; several calls for one partition may share it.
        """
        ...

    async def flush(self) -> None:
        """Returns when every copy is durable, though not committed, and all spans are whole."""
        ...

    async def commit(self, records: Sequence[NewRecord]) -> None:
        """Writes these behind the copies and commits."""
        ...

    async def close(self) -> None:
        """Aborts the open transaction, unless it is somebody else's; safe to call twice."""
        ...


COPY_TIMEOUT_S = 10.0
"""A dead link's transaction holds back readers of the target for so long at most (H2)."""


class LinkConnector(Connector, Protocol):
    """A connector of a cluster that links read from and write to."""

    def column_reader(self, client_id: str) -> ColumnReader:
        """A reader of columns of committed native data."""
        ...

    def copy_writer(self, transactional_id: str) -> CopyWriter:
        """A writer of large native transactions."""
        ...
