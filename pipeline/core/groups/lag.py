"""How many records of a group are unpublished, and how many would be read again, at bounded cost.

*Source*: docs/protocols I6, I7. *Invariants*: the number of records read again is never lower than
what `read_again` counts for the same claims; near the group's offset every record is read, further
on the index gives an upper bound.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stilltide.pipeline.core.groups.frontier import WALK_MAX, LogView, Reading, read_again
from stilltide.pipeline.core.groups.group import Standing
from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Claims
from stilltide.schemas.values import EndOffset, Offset


class GroupLag(NamedTuple):
    """The lag of a group on one data partition of this cluster.

    Attributes:
        standing: why the group's position is what it is.
        untold: offsets that the group has passed here and that this cluster has not published.
        untold_ms: time since when there are such offsets; 0: there are none.
    """

    standing: Standing
    untold: int
    untold_ms: int


def read_again_bounded(
    view: LogView, indexes: Sequence[OffsetIndex], claimed: Claims, offset: Offset
) -> Reading[int]:
    """The most claimed records that are at or above an offset here, or will be copied here.

    The number is exact for the next `WALK_MAX` offsets of the log, which are read.
    """
    first = max(view.log_start, offset)
    near = EndOffset(max(first, min(view.decided_end, first + WALK_MAX)))
    walked = view._replace(decided_end=near)
    count = yield from read_again(walked, indexes, claimed, Offset(first))
    beyond = read_again_at_most(view, indexes, claimed, Offset(near))
    # In a bucket that was read in part, the index may count records a second time.
    return min(count + beyond, read_again_at_most(view, indexes, claimed, Offset(first)))


def read_again_at_most(
    view: LogView, indexes: Iterable[OffsetIndex], claimed: Claims, offset: Offset
) -> int:
    """The bound of `read_again_bounded` by the index alone, at one look-up for each link.

    Every claimed offset counts, including those of aborted records, control records and copies.
    """
    position = max(view.log_start, offset)
    below = intervals.below(position)
    here = intervals.size(intervals.minus(claimed.get(view.incarnation, ()), below))
    coming = 0
    for index in indexes:
        copied, left = _of_link(view, index, claimed, position)
        here += copied
        coming += left
    return min(here, max(0, view.decided_end - position)) + coming


def _of_link(view: LogView, index: OffsetIndex, claimed: Claims, position: int) -> tuple[int, int]:
    """Number of one source's claimed records copied at or above the position, and not copied."""
    frontier = index.frontier(view.incarnation.topic, position)
    theirs = {one: held for one, held in claimed.items() if one.cluster == index.source}
    above = claims.minus(theirs, frontier.claimed)
    newest, coming = index.newest, above
    if newest is not None:
        above = claims.minus(above, newest.holes)
        stretch = {index.incarnation(newest): intervals.below(newest.source_to)}
        coming = claims.minus(above, stretch)
    left = _size(coming)
    copied = _size(above) - left
    bucket = frontier.undecided
    if bucket is not None:
        at_most = bucket.target_to - position
        within = intervals.interval(bucket.source_from, bucket.source_to)
        outside = claims.minus(above, {index.incarnation(bucket): within})
        copied -= max(0, _size(above) - _size(outside) - at_most)
    return copied, left


def _size(held: Claims) -> int:
    return sum(intervals.size(one) for one in held.values())
