"""Batches of messages, as sequences of messages or as columns.

*Source*: `Subscription.batches`; docs/columns.md.

*Invariant*: the columns are made of what the client library has read, when they are asked for: a
program that reads columns makes no object for each record.
"""

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from importlib import import_module
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, cast, overload

from stilltide.connectors.ports.readers import (
    FetchedRecord,
    Record,
    WrappedRecord,
    column,
    records_of,
    timestamps_ms,
)
from stilltide.pipeline.errors import UsageError
from stilltide.pipeline.extras import require_module
from stilltide.schemas.headers import Headers
from stilltide.schemas.values import Offset, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa  # pyright: ignore[reportMissingTypeStubs]

    class Message(Record):
        """A visible record; key and value are bytes or None, or what deserializers have made."""

        key: Any  # pyright: ignore[reportIncompatibleVariableOverride]
        value: Any  # pyright: ignore[reportIncompatibleVariableOverride]

else:
    Message = Record
    """A visible record: topic, partition, offset, key, value, headers as written, and its `txn`.

    Key and value are bytes or None, or what the subscription's deserializers have made of them.
    """


class MessageBatch(Sequence[Message]):
    """Messages of one partition in offset order, at least one: a sequence of them, or columns.

        async for batch in orders.batches(records_max=10_000, wait_s_max=0.5):
            total += sum(map(len, batch.values))

    A column is a list with an item for each message; each is made when it is first asked for.

    Args:
        data: the partition.
        fetched: the messages as they were read.
        messages: the messages, if they are made already.
        decoded: the names of the columns that deserializers have made.

    Attributes:
        data: the partition.
    """

    def __init__(
        self,
        data: TopicPartition,
        fetched: Sequence[FetchedRecord],
        messages: Sequence[Message] | None = None,
        decoded: Collection[str] = (),
    ) -> None:
        self.data = data
        self._decoded = decoded
        self._fetched = fetched
        self._made = messages

    @classmethod
    def of(cls, messages: Sequence[Message], decoded: Collection[str] = ()) -> "MessageBatch":
        """The batch of messages that are made already; at least one, all of one partition."""
        return cls(messages[0].data, [*map(WrappedRecord, messages)], messages, decoded)

    @cached_property
    def offsets(self) -> list[Offset]:
        """The offset of each message."""
        return column(self._fetched, "offset")

    @cached_property
    def keys(self) -> list[Any]:
        """The key of each message: bytes, None, or what `key_deserializer` has made."""
        return column(self._fetched, "key")

    @cached_property
    def values(self) -> list[Any]:
        """The value of each message: bytes, None, or what `value_deserializer` has made."""
        return column(self._fetched, "value")

    @cached_property
    def headers(self) -> list[Headers | None]:
        """The headers of each message, names and values in their order; None: it has none."""
        return column(self._fetched, "headers")

    @cached_property
    def timestamps_ms(self) -> list[int]:
        """The timestamp of each message, milliseconds since 1970; -1: it has none."""
        return timestamps_ms(self._fetched)

    def to_arrow(self) -> "pa.RecordBatch":  # pyright: ignore[reportUnknownParameterType, reportUnknownMemberType]
        """The batch as Arrow's, for Polars, DuckDB, pandas and Parquet; needs the extra `arrow`.

        Columns: `topic` (dictionary of strings), `partition` (int32), `offset` (int64), `timestamp`
        (milliseconds, UTC; null: none), `key`, `value` (binary), `headers` (list of name and
        value). What deserializers have made has the type that pyarrow finds: dicts become structs.

        Raises:
            MissingExtraError: pyarrow is not installed.
            UsageError: what a deserializer has made fits no column, or a column is larger than the
                2 GiB that Arrow allows.
        """
        require_module("to_arrow", "pyarrow")
        return _record_batch(import_module("pyarrow"), self, self._decoded)

    @property
    def _messages(self) -> Sequence[Message]:
        if self._made is None:
            self._made = cast("list[Message]", records_of(self.data, self._fetched))
        return self._made

    def __len__(self) -> int:
        return len(self._fetched)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __repr__(self) -> str:
        first, last = self._fetched[0].offset(), self._fetched[-1].offset()
        return f"<MessageBatch of {len(self)} messages of {self.data}, offsets {first} to {last}>"


_BYTES = {bytes, type(None)}


def _record_batch(pa: Any, batch: MessageBatch, decoded: Collection[str]) -> Any:
    """The batch that `to_arrow` returns; `pa` is pyarrow, which describes no types."""
    topic, partition = batch.data
    stamps = [None if at_ms < 0 else at_ms for at_ms in batch.timestamps_ms]
    try:
        columns = {
            "topic": pa.array([topic] * len(batch)).dictionary_encode(),
            "partition": pa.array([partition] * len(batch), pa.int32()),
            "offset": pa.array(batch.offsets, pa.int64()),
            "timestamp": pa.array(stamps, pa.timestamp("ms", "UTC")),
            "key": _field(pa, batch.keys, decoded="key" in decoded),
            "value": _field(pa, batch.values, decoded="value" in decoded),
            "headers": _headers(pa, batch.headers),
        }
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise UsageError(
            "the messages fit no column of Arrow",
            detail=str(error),
            hint="have deserializers return values of one type, such as dicts or numbers, and text"
            " that UTF-8 can encode",
            data=batch.data,
        ) from error
    for name, made in columns.items():
        if isinstance(made, pa.ChunkedArray):
            raise UsageError(
                f"the {name}s of {len(batch)} messages do not fit into a column of Arrow",
                detail="a column of bytes or text holds at most 2 GiB",
                hint="take batches with a smaller `records_max`",
                data=batch.data,
            )
    return pa.RecordBatch.from_pydict(columns)


def _field(pa: Any, values: list[Any], *, decoded: bool) -> Any:
    """Bytes are a column of bytes even if all are None; pyarrow finds the type of other values.

    If all that a deserializer has made is None, the column has the type null, which goes with every
    other type where batches become one table.
    """
    if decoded or not set(map(type, values)) <= _BYTES:
        return pa.array(values)
    return pa.array(values, pa.binary())


def _headers(pa: Any, of_messages: Sequence[Headers | None]) -> Any:
    """A list for each message, empty without headers; U+FFFD where a name is not UTF-8."""
    lengths = [len(headers or ()) for headers in of_messages]
    pairs = [*chain.from_iterable(headers or () for headers in of_messages)]
    names = [name.encode(errors="surrogateescape").decode(errors="replace") for name, _ in pairs]
    fields = [pa.array(names, pa.string()), pa.array([value for _, value in pairs], pa.binary())]
    structs = pa.StructArray.from_arrays(fields, ["name", "value"])
    ends = pa.array(accumulate(lengths, initial=0), pa.int32())
    return pa.ListArray.from_arrays(ends, structs)
