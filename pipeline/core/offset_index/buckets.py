"""The offset index as a link writes it: each transaction extends the newest bucket.

*Source*: docs/protocols H3, H5.
*Invariants*: within a target incarnation buckets ascend on both sides and do not overlap, and
numbers always ascend; a stretch that follows the newest bucket without a gap joins that bucket if
the bucket then spans at most 10 000 offsets on either side; a bucket that translates nothing any
more is dropped.

A bucket's range on the source never exceeds 10 000 offsets. Its range on the target can: a stretch
opens a new bucket however far apart its copies are, and they are far apart when other producers
write between the copies of one chunk.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.schemas.replication.origins import Claims, Incarnation
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import EndOffset, Offset, Range

SPAN_MAX = 10_000
"""Most offsets that a bucket grows to on either side before the next bucket is opened."""


class Stretch(NamedTuple):
    """A range of source offsets that a link has copied, and the range of the copies.

    Attributes:
        source_from: first offset on the source.
        source_to: end offset on the source.
        copies: range of target offsets that contains the copies; None: nothing was copied.
    """

    source_from: Offset
    source_to: EndOffset
    copies: Range | None


def extended(newest: Bucket, stretch: Stretch, span_max: int = SPAN_MAX) -> Bucket | None:
    """The newest bucket extended by a stretch; None: the stretch belongs into the next bucket."""
    if stretch.source_from != newest.source_to:
        return None
    if stretch.copies is None:
        return newest._replace(source_to=stretch.source_to)
    first, end = stretch.copies
    empty = newest.target_from == newest.target_to
    target_from = first if empty else newest.target_from
    if stretch.source_to - newest.source_from > span_max or end - target_from > span_max:
        return None
    return newest._replace(source_to=stretch.source_to, target_from=target_from, target_to=end)


def following(
    newest: Bucket | None,
    source_incarnation: bytes,
    target_incarnation: bytes,
    stretch: Stretch,
    holes: Claims,
) -> Bucket:
    """A new bucket for a stretch; without copies its target range is empty, at the newest's end."""
    end = 0
    if newest is not None and newest.target_incarnation == target_incarnation:
        end = newest.target_to
    return Bucket(
        source_incarnation,
        target_incarnation,
        stretch.source_from,
        stretch.source_to,
        *(stretch.copies or Range(Offset(end), EndOffset(end))),
        holes,
    )


def with_hole(holes: Claims, incarnation: Incarnation, first: int, end: int) -> Claims:
    """Holes with `[first, end)` added, which may be empty; the number of intervals is bounded."""
    if first >= end:
        return holes
    hole = {incarnation: intervals.interval(first, end)}
    return claims.widened(claims.join(holes, hole))


def dropped(
    buckets: Mapping[int, Bucket], target_incarnation: bytes, target_log_start: Offset
) -> list[int]:
    """Numbers of buckets that translate nothing any more, ascending; costs a walk over all buckets.

    These are the buckets of former target incarnations, and those that end at or below the
    target's log start. Of the latter, the last one of each source incarnation stays, because it
    contains how far that incarnation was copied.
    """
    gone: list[int] = []
    last: dict[bytes, int] = {}
    for number in sorted(buckets):
        bucket = buckets[number]
        if bucket.target_incarnation != target_incarnation:
            gone.append(number)
        elif bucket.target_to <= target_log_start:
            before = last.get(bucket.source_incarnation)
            if before is not None:
                gone.append(before)
            last[bucket.source_incarnation] = number
    return sorted(gone)
