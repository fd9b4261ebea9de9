"""Conversion of a position to claims (`claims_below`), and of claims to a position (`prefix`).

*Source*: docs/protocols H3 (F), I6, I7, I8.
*Invariants*: `claims_below` claims no record at or past the offset; `prefix` passes no visible
record that is not claimed. A record that cannot be read yet counts as not copied and not claimed.

Both are generators: they yield the parts of the log to read, and are sent the records. The offset
index bounds the reads to one bucket for each link, plus a bounded walk in `prefix`.
"""

from collections.abc import Container, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.pipeline.core.offset_index.index import OffsetIndex
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import EndOffset, Offset, Ranges

WALK_MAX = 10_000
"""Most offsets that `prefix` reads record by record after the buckets."""

COUNTED_MAX = 100_000
"""Most offsets that `read_again` asks for at once."""


class LogView(NamedTuple):
    """A data partition's offsets on this cluster at one moment.

    Attributes:
        incarnation: incarnation of the topic here.
        log_start: log start offset.
        end: high watermark.
        decided_end: offset below which every record is decided (H).
    """

    incarnation: Incarnation
    log_start: Offset
    end: EndOffset
    decided_end: EndOffset


class ReadLog(NamedTuple):
    """A request for the visible records of `[first, end)`."""

    first: Offset
    end: EndOffset


class VisibleRecord(NamedTuple):
    """A record that readers of committed data see; `origin` is None without such a header."""

    offset: Offset
    origin: Origin | None


class LogRead(NamedTuple):
    """The answer to `ReadLog`: all visible records from its `first` to below `read_to`."""

    records: Sequence[VisibleRecord]
    read_to: EndOffset


T = TypeVar("T")
Reading = Generator[ReadLog, LogRead, T]
"""A computation of a T that yields each part of the log that it has to read."""


def first_write(record: VisibleRecord, here: Incarnation, copied: Container[Incarnation]) -> Origin:
    """Where a record was written first: here, unless a link copies from its origin header (H1)."""
    origin = record.origin
    if origin is None or origin.incarnation not in copied:
        return Origin(here, record.offset)
    return origin


def copied_incarnations(indexes: Iterable[OffsetIndex]) -> set[Incarnation]:
    """The incarnations from which copies in the log may come."""
    return set[Incarnation]().union(*(index.source_incarnations() for index in indexes))


def claims_below(view: LogView, indexes: Iterable[OffsetIndex], offset: Offset) -> Reading[Claims]:
    """F (I6): the records that a group at `offset` counts as having read, as claims."""
    parts: list[Claims] = [{view.incarnation: own} if (own := intervals.below(offset)) else {}]
    for index in indexes:
        frontier = index.frontier(view.incarnation.topic, offset)
        copied_to = 0
        if frontier.undecided is not None and offset >= view.log_start:
            copied_to = yield from _copied_below(index, frontier.undecided, offset)
        parts.append(index.completed(frontier, copied_to))
    return claims.join(*parts)


def _copied_below(index: OffsetIndex, bucket: Bucket, offset: Offset) -> Reading[int]:
    """The source offset up to which a bucket's records were copied below `offset`.

    That is the origin of the first copy at or above `offset`, since copies are in order. If no such
    copy is decided yet, the result is the offset after the last copy below: waiting would not help,
    because the group may be moved on before (I7).
    """
    read = yield ReadLog(offset, bucket.target_to)
    for origin in _copies(index, bucket, read):
        return origin.offset
    if read.read_to >= bucket.target_to:
        return bucket.source_to
    read = yield ReadLog(bucket.target_from, EndOffset(offset))
    return max((one.offset + 1 for one in _copies(index, bucket, read)), default=bucket.source_from)


def _copies(index: OffsetIndex, bucket: Bucket, read: LogRead) -> Iterator[Origin]:
    """Origins of the copies of a bucket's records among the records that were read."""
    for record in read.records:
        if record.origin is not None and index.is_copy(bucket, record.origin):
            yield record.origin


def prefix(
    view: LogView, indexes: Sequence[OffsetIndex], claimed: Claims, base: Offset
) -> Reading[Offset]:
    """I7, I8: the end of the longest stretch from `base` on whose visible records are all claimed.

    The result may be lower, because walks are bounded: a call from there goes further.
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
        if not claims.holds(claimed, first_write(record, view.incarnation, copied)):
            return record.offset
    return Offset(max(at, min(read.read_to, view.decided_end)))


def _first_unclaimed(
    view: LogView, index: OffsetIndex, claimed: Claims, base: int, limit: int
) -> Reading[int]:
    """Offset of the first copy of one link in `[base, limit)` that is not claimed, else `limit`.

    Reads only buckets with unclaimed source offsets, each after the one before held no such copy.
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

    A consumer that begins at the position and skips nothing reads these records again. Reads the
    log from the position to the decided end, where claimed records may be.
    """
    indexes = list(indexes)
    copied = copied_incarnations(indexes)
    count, position = 0, Offset(max(position, view.log_start))
    for first, end in _where_claimed(view, indexes, claimed, position):
        at: int = first
        while at < end:
            read = yield ReadLog(Offset(at), EndOffset(min(at + COUNTED_MAX, end)))
            origins = (first_write(record, view.incarnation, copied) for record in read.records)
            count += sum(claims.holds(claimed, origin) for origin in origins)
            if read.read_to <= at:
                return count
            at = read.read_to
    return count


def _where_claimed(
    view: LogView, indexes: Iterable[OffsetIndex], claimed: Claims, position: Offset
) -> Ranges:
    """Offsets at which claimed records may be, from a position to the decided end."""
    topic = view.incarnation.topic
    stretches = [claimed.get(view.incarnation, ())]
    for index in indexes:
        for bucket in index.from_target(topic, position):
            stretch = intervals.interval(bucket.source_from, bucket.source_to)
            if intervals.minus(stretch, claimed.get(index.incarnation(bucket), ())) != stretch:
                stretches.append(intervals.interval(bucket.target_from, bucket.target_to))
        if any(one.cluster == index.source for one in claimed):  # copies without a bucket yet
            stretches.append(intervals.interval(index.copied_end(topic), view.decided_end))
    outside = (*intervals.below(position), *intervals.interval(view.decided_end, 2**63))
    return intervals.minus(intervals.union(*stretches), outside)
