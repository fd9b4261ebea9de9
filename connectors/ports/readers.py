"""Ports of readers: of named partitions, of a group's partitions, of raw batches."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from stilltide.connectors.ports.records import EndReached, Record, Run
from stilltide.schemas.native.batches import AbortedTransaction, Batch
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


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
