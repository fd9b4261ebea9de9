"""The offset index as a link writes it: one bucket grows with each transaction.

*Source*: docs/protocols H3, H5.
*Invariants*: within a target incarnation buckets ascend on both sides and do not overlap, numbers
always ascend; a stretch that follows its predecessor without a gap joins it while the bucket
then spans at most 10 000 offsets on either side; a bucket that translates nothing any more is
dropped.

A bucket's range on the source never passes 10 000 offsets. Its range on the target can: a stretch
opens a bucket of its own however far apart its copies lie, and they lie far apart when other
producers write between the copies of one chunk.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.schemas.replication.origins import Claims, Incarnation, Interval
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import EndOffset, Offset

SPAN_MAX = 10_000
"""Offsets that a bucket grows to on either side before the next bucket is opened."""


class Stretch(NamedTuple):
    """Offsets of the source that were looked at, and where the copies of the local ones lie.

    Attributes:
        source_from: first offset.
        source_to: end offset.
        copies: the offsets that their copies lie within on the target; None: nothing was copied.
    """

    source_from: Offset
    source_to: EndOffset
    copies: Interval | None


def extended(newest: Bucket, stretch: Stretch, span_max: int = SPAN_MAX) -> Bucket | None:
    """The newest bucket with what follows it; None: it belongs into the next one."""
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
    """The bucket behind the newest one; without copies it is empty where that one ends."""
    end = 0
    if newest is not None and newest.target_incarnation == target_incarnation:
        end = newest.target_to
    return Bucket(
        source_incarnation,
        target_incarnation,
        stretch.source_from,
        stretch.source_to,
        *(stretch.copies or Interval(Offset(end), EndOffset(end))),
        holes,
    )


def with_hole(holes: Claims, incarnation: Incarnation, first: int, end: int) -> Claims:
    """Holes, and `[first, end)` among them, which may be empty; a bounded number of them."""
    if first >= end:
        return holes
    hole = {incarnation: intervals.interval(first, end)}
    return claims.widened(claims.join(holes, hole))


def dropped(
    buckets: Mapping[int, Bucket], target_incarnation: bytes, target_log_start: Offset
) -> list[int]:
    """Numbers of buckets that translate nothing any more, ascending; a walk over all of them.

    Those of former target incarnations, and those that end at or below the target's log start,
    except the last such one of each source incarnation, which says how far it was copied.
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
