"""How far a group trails, and what it would read again, at a bounded cost.

*Source*: docs/protocols I6, I7. *Invariants*: what is said to be read again is never less than what
`read_again` counts of the same claims; near the group every record is looked at, beyond that the
index says how many there are at most.
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
    """A group on one data partition of this cluster.

    Attributes:
        standing: why it is where it is.
        untold: offsets that it has passed here and no update of this cluster has told of.
        untold_ms: for how long there have been some; 0 without.
    """

    standing: Standing
    untold: int
    untold_ms: int


def read_again_bounded(
    view: LogView, indexes: Sequence[OffsetIndex], claimed: Claims, offset: Offset
) -> Reading[int]:
    """Records claimed that lie at or above an offset here, or will yet be copied here, at most.

    Exact for what is in the log within `WALK_MAX` offsets, which is all it reads.
    """
    first = max(view.log_start, offset)
    near = EndOffset(max(first, min(view.decided_end, first + WALK_MAX)))
    walked = view._replace(decided_end=near)
    count = yield from read_again(walked, indexes, claimed, Offset(first))
    beyond = read_again_at_most(view, indexes, claimed, Offset(near))
    # In a bucket that is walked in part, the index may count again what was counted there.
    return min(count + beyond, read_again_at_most(view, indexes, claimed, Offset(first)))


def read_again_at_most(
    view: LogView, indexes: Iterable[OffsetIndex], claimed: Claims, offset: Offset
) -> int:
    """Likewise, by the index alone: a look-up for each link.

    Every offset that is claimed counts, also one of an aborted or a control record, or of a copy.
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
    """Claimed records of one source: copied at or above the position, and not copied yet."""
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
