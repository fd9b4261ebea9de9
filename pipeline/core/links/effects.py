"""What a link asks of its driver. A list of effects is carried out in its order.

*Source*: docs/protocols H2-H6. When an effect fails, or nobody knows, the link is over: another one
begins, with `FenceTarget`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stilltide.pipeline.core.links.copying import BucketChange, SourceRecord
from stilltide.pipeline.core.links.marker_queue import CopiedMarker
from stilltide.schemas.replication.origins import Interval
from stilltide.schemas.values import EndOffset, TopicPartition

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class FenceTarget:
    """Take the link's transactional id on the target from whoever has it; report `fenced`."""


@dataclass(frozen=True, slots=True)
class ReadPositionsEnd:
    """Read the end offset of the positions partition, from now on; report `positions_end_read`."""


@dataclass(frozen=True, slots=True)
class ReadLinkPositions:
    """Read the positions partition at read_committed, from its start on.

    Report each of the link's buckets by `bucket_read`, and the last stable offset that was read to
    by `positions_read`, again and again until `ServeLink` comes: it must pass `until`, behind which
    another link's open transaction may hide this link's own newest bucket (H2).
    """

    until: EndOffset


@dataclass(frozen=True, slots=True)
class ServeLink:
    """The link knows its positions: report data partitions, markers and records from now on."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read this data partition of the source from `position` on; report `records_read`."""

    data: TopicPartition
    position: EndOffset


@dataclass(frozen=True, slots=True)
class ReportLost:
    """Tell the operator: these offsets left the source's log before they were copied (H5)."""

    data: TopicPartition
    offsets: Interval


@dataclass(frozen=True, slots=True)
class ReadIncarnations:
    """Read from where links have copied this data partition to the source.

    Report `incarnations_read`. The source's positions partition is to be read past the end it has
    from now on: a copy and the bucket that names its origin become visible together (H1). No
    further records of the data partition until then.
    """

    data: TopicPartition


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a Kafka transaction on the target."""

    transaction: int


@dataclass(frozen=True, slots=True)
class Copy(Generic[P]):
    """Write copies of these records in the open transaction, in order, to the same partition.

    Their headers are those that `schemas.replication.origins.OriginStamp` makes.

    Attributes:
        transaction: the open one.
        data: where.
        chunk: what `finished` names the copies by.
        records: of the source.
    """

    transaction: int
    data: TopicPartition
    chunk: int
    records: Sequence[SourceRecord[P]]


@dataclass(frozen=True, slots=True)
class Finish:
    """Wait for every copy of the transaction, then read both topics again; report `finished`.

    Attributes:
        transaction: the open one.
        partitions: data partitions, and how many chunks each has in the transaction.
    """

    transaction: int
    partitions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Write these in the open transaction and commit it; report `committed` (H2, H4).

    Attributes:
        transaction: the open one.
        buckets: by data partition; None is a tombstone.
        markers: in this order.
    """

    transaction: int
    buckets: Mapping[TopicPartition, Sequence[BucketChange]]
    markers: Sequence[CopiedMarker]


@dataclass(frozen=True, slots=True)
class StartOver:
    """A topic was deleted and created anew: abort, and begin with another link (H6)."""

    data: TopicPartition


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
)
"""What the driver carries out."""
