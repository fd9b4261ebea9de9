"""Effects of a link. The driver carries out a list of effects in its order.

*Source*: docs/protocols H2-H6. When an effect fails, or its outcome is unknown, the link ends:
another one begins with `FenceTarget`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stilltide.pipeline.core.links.copying import BucketChange, SourceRecord
from stilltide.pipeline.core.links.marker_queue import CopiedMarker
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class FenceTarget:
    """Effect: fence the former producer of the link's transactional id; report `fenced`."""


@dataclass(frozen=True, slots=True)
class ReadPositionsEnd:
    """Effect: read the positions partition's end, from now on; report `positions_end_read`."""


@dataclass(frozen=True, slots=True)
class ReadLinkPositions:
    """Effect: read the positions partition at read_committed, from its start on.

    Report each of the link's buckets by `bucket_read`, and each last stable offset up to which was
    read by `positions_read`, until `ServeLink` comes. That offset must pass `until`, because below
    it another link's open transaction may hold back this link's newest bucket (H2).
    """

    until: EndOffset


@dataclass(frozen=True, slots=True)
class ServeLink:
    """Effect: report data partitions, signals and records from now on; the positions are known."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Effect: read this data partition of the source from `position` on; report `records_read`."""

    data: TopicPartition
    position: EndOffset


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Effect: report to the operator that these offsets left the source's log uncopied (H5)."""

    data: TopicPartition
    offsets: Range


@dataclass(frozen=True, slots=True)
class ReadIncarnations:
    """Effect: read which incarnations links have copied to this data partition of the source.

    Report `incarnations_read`. The source's positions partition is read past the end that it has
    after this effect, because a copy and the bucket that names its origin become visible together
    (H1). Until then no further records of the data partition are reported.
    """

    data: TopicPartition


@dataclass(frozen=True, slots=True)
class Begin:
    """Effect: begin a native transaction on the target."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Copy(Generic[P]):
    """Effect: write copies of these records in the open transaction, to the same partition.

    `schemas.replication.origins.OriginStamp` makes the headers of the copies.

    Attributes:
        transaction: number of the open transaction.
        data: the data partition.
        chunk: index of the chunk, by which `finished` reports the offsets of the copies.
        records: records of the source, in the order to copy.
    """

    transaction: int
    data: TopicPartition
    chunk: int
    records: Sequence[SourceRecord[P]]


@dataclass(frozen=True, slots=True)
class Finish:
    """Effect: wait for every copy of the transaction, read both topics again; report `finished`.

    Attributes:
        transaction: number of the open transaction.
        partitions: number of chunks of each data partition in the transaction.
    """

    transaction: int
    partitions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Effect: write these in the open transaction and commit it; report `committed` (H2, H4).

    Attributes:
        transaction: number of the open transaction.
        buckets: changed buckets by data partition; None is a tombstone.
        markers: signals in the order to write.
        beat: whether to write a beat, too (I13).
    """

    transaction: int
    buckets: Mapping[TopicPartition, Sequence[BucketChange]]
    markers: Sequence[CopiedMarker]
    beat: bool = False


@dataclass(frozen=True, slots=True)
class StartOver:
    """Effect: abort, and begin another link; a topic was deleted and created again (H6)."""

    data: TopicPartition


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Effect: report that these records have no key, and are not copied (H10)."""

    data: TopicPartition
    offsets: Sequence[Offset]


@dataclass(frozen=True, slots=True)
class AwaitPolicy:
    """Effect: report that the partition waits at a record without key (H10).

    Another link begins as soon as the target's topic does not compact any more.
    """

    data: TopicPartition
    offset: Offset


LinkEffect = (
    FenceTarget
    | ReadPositionsEnd
    | ReadLinkPositions
    | ServeLink
    | Fetch
    | ReportLost
    | ReadIncarnations
    | Begin
    | Copy[P]
    | Finish
    | Commit
    | StartOver
    | LeaveOut
    | AwaitPolicy
)
"""What the driver carries out."""
