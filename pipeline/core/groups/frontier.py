"""What a position stands for, and the position that claims stand for.

*Source*: docs/protocols H3 (F), I6, I7, I8.
*Invariants*: `claims_below` claims nothing at or past the offset; `prefix` passes no visible record
that is not claimed. What cannot be read yet is taken for not copied, respectively not claimed.

Both are generators: they yield what they have to read of the log and are sent what was read; the
index tells them where to look, so that neither reads more than a bucket for each link, and `prefix`
a bounded walk.
"""

from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Claims, Incarnation, Intervals, Origin
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import EndOffset, Offset

WALK_MAX = 10_000
"""Offsets that `prefix` walks over behind what the index says."""

COUNTED_MAX = 100_000
"""Offsets that `read_again` asks for at once."""


class LogView(NamedTuple):
    """A data partition of this cluster at one moment.

    Attributes:
        incarnation: of the topic here.
        log_start: the first offset that is left.
        end: high watermark.
        decided_end: every record below it is decided (H).
    """

    incarnation: Incarnation
    log_start: Offset
    end: EndOffset
    decided_end: EndOffset


class ReadLog(NamedTuple):
    """Wanted: the visible records of `[first, end)`."""

    first: Offset
    end: EndOffset


class VisibleRecord(NamedTuple):
    """A record that readers of committed data see; `origin` is None for a local one."""

    offset: Offset
    origin: Origin | None


class LogRead(NamedTuple):
    """All visible records from where was asked for to below `read_to`, ascending."""

    records: Sequence[VisibleRecord]
    read_to: EndOffset


T = TypeVar("T")
Reading = Generator[ReadLog, LogRead, T]
"""Computes a T; yields what it wants to read."""


def origin_of(record: VisibleRecord, here: Incarnation, copied: Container[Incarnation]) -> Origin:
    """Where a record was written first: here, unless a link has copied from where it says (H1)."""
    origin = record.origin
    if origin is None or origin.incarnation not in copied:
        return Origin(here, record.offset)
    return origin


def copied_incarnations(indexes: Iterable[OffsetIndex]) -> set[Incarnation]:
    """Where copies in the log may come from."""
    return set[Incarnation]().union(*(index.source_incarnations() for index in indexes))


def claims_below(view: LogView, indexes: Iterable[OffsetIndex], offset: Offset) -> Reading[Claims]:
    """F: what this log held below `offset`, as claims; read or unread, it counts as read."""
    found: list[Claims] = [{view.incarnation: own} if (own := intervals.below(offset)) else {}]
    for index in indexes:
        frontier = index.frontier(view.incarnation.topic, offset)
        copied_to = 0
        if frontier.undecided is not None and offset >= view.log_start:
            copied_to = yield from _copied_below(index, frontier.undecided, offset)
        found.append(index.completed(frontier, copied_to))
    return claims.join(*found)


def _copied_below(index: OffsetIndex, bucket: Bucket, offset: Offset) -> Reading[int]:
    """How far the stretch of a bucket has been copied below `offset`.

    To the first copy at or above it, for copies are in order. If that is not decided yet, behind
    the last one below it: a later look may know no more, once the group was moved on (I7).
    """
    read = yield ReadLog(offset, bucket.target_to)
    for origin in _copies(index, bucket, read):
        return origin.offset
    if read.read_to >= bucket.target_to:
        return bucket.source_to
    read = yield ReadLog(bucket.target_from, EndOffset(offset))
    return max((one.offset + 1 for one in _copies(index, bucket, read)), default=bucket.source_from)


def _copies(index: OffsetIndex, bucket: Bucket, read: LogRead) -> Iterator[Origin]:
    """Origins of the copies of a bucket's stretch among what was read."""
    for record in read.records:
        if record.origin is not None and index.is_copy(bucket, record.origin):
            yield record.origin


def prefix(
    view: LogView, indexes: Sequence[OffsetIndex], claimed: Claims, base: Offset
) -> Reading[Offset]:
    """The end of the longest stretch from `base` on whose visible records are all claimed.

    It may be shorter, by the bound of a walk: call again from where it ended.
    """
    own = claimed.get(view.incarnation, ())
    limit = min(view.decided_end, intervals.first_outside(own, base))
    for index in indexes:
        if limit > base:
            limit = yield from _first_unclaimed(view, index, claimed, base, limit)
    at = Offset(max(base, limit))
    if at >= view.decided_end:
        return at
    read = yield ReadLog(at, EndOffset(min(view.decided_end, at + WALK_MAX)))
    copied = copied_incarnations(indexes)
    for record in read.records:
        if not claims.holds(claimed, origin_of(record, view.incarnation, copied)):
            return record.offset
    return Offset(max(at, min(read.read_to, view.decided_end)))


def _first_unclaimed(
    view: LogView, index: OffsetIndex, claimed: Claims, base: int, limit: int
) -> Reading[int]:
    """The first copy of one link in `[base, limit)` that is not claimed, else `limit`.

    Reads buckets with gaps only, and a second one only if the first has no copy in its gaps.
    """
    unread = 0
    for bucket in index.from_target(view.incarnation.topic, Offset(base)):
        first, end = max(bucket.target_from, base), min(bucket.target_to, limit)
        if first >= limit:
            break
        stretch = intervals.interval(bucket.source_from, bucket.source_to)
        gaps = intervals.minus(stretch, claimed.get(index.incarnation(bucket), ()))
        if not gaps:
            continue
        unread += end - first
        if unread > 2 * WALK_MAX and unread > end - first:
            return first
        read = yield ReadLog(Offset(first), EndOffset(end))
        for record in read.records:
            origin = record.origin
            if origin is None or not index.is_copy(bucket, origin):
                continue
            if intervals.holds(gaps, origin.offset):
                return record.offset
        if read.read_to < end:
            return max(base, read.read_to)
    return limit


def read_again(
    view: LogView, indexes: Iterable[OffsetIndex], claimed: Claims, position: Offset
) -> Reading[int]:
    """How many visible records at or above a position are claimed.

    So many are read twice by a consumer that begins there and skips nothing, if `claimed` is what
    its group has read. Reads the log from the position to the decided end, where claimed records
    may lie.
    """
    indexes = list(indexes)
    copied = copied_incarnations(indexes)
    count, position = 0, Offset(max(position, view.log_start))
    for first, end in _where_claimed(view, indexes, claimed, position):
        at: int = first
        while at < end:
            read = yield ReadLog(Offset(at), EndOffset(min(at + COUNTED_MAX, end)))
            origins = (origin_of(record, view.incarnation, copied) for record in read.records)
            count += sum(claims.holds(claimed, origin) for origin in origins)
            if read.read_to <= at:
                return count
            at = read.read_to
    return count


def _where_claimed(
    view: LogView, indexes: Iterable[OffsetIndex], claimed: Claims, position: Offset
) -> Intervals:
    """Where visible records that are claimed may lie, from a position to the decided end."""
    topic = view.incarnation.topic
    found = [claimed.get(view.incarnation, ())]
    for index in indexes:
        for bucket in index.from_target(topic, position):
            stretch = intervals.interval(bucket.source_from, bucket.source_to)
            if intervals.minus(stretch, claimed.get(index.incarnation(bucket), ())) != stretch:
                found.append(intervals.interval(bucket.target_from, bucket.target_to))
        if any(one.cluster == index.source for one in claimed):  # what the index does not know yet
            found.append(intervals.interval(index.copied_end(topic), view.decided_end))
    outside = (*intervals.below(position), *intervals.interval(view.decided_end, 2**63))
    return intervals.minus(intervals.union(*found), outside)
