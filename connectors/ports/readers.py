"""Ports of readers: by partition, by consumer group, and of raw batches.

`check_metadata` is the check of every connector's commits; *Source*: Kafka's
`offset.metadata.max.bytes`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from stilltide.connectors.errors import FatalError
from stilltide.connectors.ports.records import EndReached, Record, Run
from stilltide.schemas.native.transactions import AbortedTransaction, Batch
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


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
