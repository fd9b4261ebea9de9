"""The bounds of the next window, and of what follows it; pure.

*Invariants*: a window ends at or below the first undecided record, so that no record of a window
can change its class later. The records behind it are looked at again in each run.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stilltide.pipeline.core.tables.shares import bounded_shares
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition


class Bounds(NamedTuple):
    """The ranges that one run may read.

    Attributes:
        data: ranges from the stored positions, together of `records_max` offsets at most.
        is_all: whether they reach the last stable offset of every partition.
    """

    data: tuple[OffsetRange, ...]
    is_all: bool


def bounded(left: Sequence[OffsetRange], records_max: int) -> Bounds:
    """The part of `left` to read in one run: shares of the partitions that have offsets left."""
    data = bounded_shares(left, records_max)
    return Bounds(data, all(one.end == of.end for one, of in zip(data, left, strict=True)))


def behind(data: Sequence[OffsetRange], window: Sequence[OffsetRange]) -> tuple[OffsetRange, ...]:
    """What `data` holds past the windows."""
    ends: Mapping[TopicPartition, EndOffset] = {one.data: one.end for one in window}
    return tuple(one._replace(start=Offset(ends[one.data])) for one in data)
