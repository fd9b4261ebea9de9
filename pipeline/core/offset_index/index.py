"""The offset index of one link for one data partition: how it is read, and how a link extends it.

*Source*: docs/protocols H3 (F_X), H5, H6.
*Invariants*: buckets of another target incarnation than the one asked for are ignored; where only
the log can give the answer, the result names the bucket whose copies must be read. Within a target
incarnation buckets ascend on both sides and do not overlap, and numbers always ascend; a stretch
that follows the newest bucket without a gap joins that bucket if the bucket then spans at most
10 000 offsets on either side; a bucket that translates nothing any more is dropped.

A look-up costs a bisection and one step for each source incarnation. A bucket's range on the source
never exceeds 10 000 offsets. Its range on the target can: a stretch opens a new bucket however far
apart its copies are, and they are far apart when other producers write between the copies of one
chunk.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import ClusterName, EndOffset, Offset, Range


class Frontier(NamedTuple):
    """The source's records that were copied below an offset of the target.

    Attributes:
        claimed: records whose copies are certainly below the offset.
        undecided: bucket whose target range contains the offset, or None; the copies from the
            offset on decide how much of the bucket's source range is below.
    """

    claimed: Claims
    undecided: Bucket | None


class OffsetIndex:
    """The buckets of one link, from the records of the positions partition in log order.

    Args:
        source: the cluster that the link copies from.
    """

    def __init__(self, source: ClusterName) -> None:
        self.source = source
        self.buckets: dict[int, Bucket] = {}
        self.version = 0  # raised by each change
        self._numbers: dict[bytes, list[int]] = {}  # by target incarnation, ascending
        self._sources: Counter[Incarnation] = Counter()

    def bucket_read(self, number: int, bucket: Bucket | None) -> None:
        """Takes a record of the positions partition; None is a tombstone."""
        before = self.buckets.get(number)
        if before == bucket:
            return
        self.version += 1
        if before is not None:
            self._numbers[before.target_incarnation].remove(number)
            self._sources[self.incarnation(before)] -= 1
        if bucket is None:
            del self.buckets[number]
            return
        self.buckets[number] = bucket
        self._sources[self.incarnation(bucket)] += 1
        insort(self._numbers.setdefault(bucket.target_incarnation, []), number)

    @property
    def newest(self) -> Bucket | None:
        """The bucket with the highest number, whose source range ends at the link's position."""
        return self.buckets[max(self.buckets)] if self.buckets else None

    def source_incarnations(self) -> set[Incarnation]:
        """The source incarnations that any bucket names."""
        return {one for one, count in self._sources.items() if count}

    def incarnation(self, bucket: Bucket) -> Incarnation:
        """The source incarnation of a bucket."""
        return Incarnation(self.source, bucket.source_incarnation)

    def is_copy(self, bucket: Bucket, origin: Origin) -> bool:
        """Whether a record within the target range of a bucket can be a copy of its stretch."""
        in_stretch = bucket.source_from <= origin.offset < bucket.source_to
        return in_stretch and origin.incarnation == self.incarnation(bucket)

    def frontier(self, target_incarnation: bytes, offset: int) -> Frontier:
        """F_X: the source's records that were copied below `offset` of the target (H3)."""
        numbers = self._numbers.get(target_incarnation, [])
        behind = bisect_right(numbers, offset, key=lambda n: self.buckets[n].target_to)
        ends: dict[Incarnation, int] = {}
        holes: Claims = {}
        for number in self._last_of_each(numbers, behind):
            bucket = self.buckets[number]
            ends[self.incarnation(bucket)], holes = bucket.source_to, bucket.holes
        undecided = None
        if behind < len(numbers):
            bucket = self.buckets[numbers[behind]]
            if bucket.target_from < offset:
                undecided, holes = bucket, bucket.holes
                ends[self.incarnation(bucket)] = bucket.source_from
        claimed = {incarnation: intervals.below(end) for incarnation, end in ends.items()}
        return Frontier(claims.minus(claimed, holes), undecided)

    def completed(self, frontier: Frontier, copied_to: int) -> Claims:
        """The claims of a frontier whose undecided bucket was copied up to `copied_to` below it."""
        bucket = frontier.undecided
        if bucket is None:
            return frontier.claimed
        more = {self.incarnation(bucket): intervals.below(copied_to)}
        return claims.join(frontier.claimed, claims.minus(more, bucket.holes))

    def from_target(self, target_incarnation: bytes, offset: int) -> Iterator[Bucket]:
        """Buckets with copies at or above `offset` of the target, ascending."""
        numbers = self._numbers.get(target_incarnation, [])
        first = bisect_right(numbers, offset, key=lambda one: self.buckets[one].target_to)
        return (self.buckets[number] for number in numbers[first:])

    def from_source(
        self, source_incarnation: bytes, target_incarnation: bytes, offset: Offset
    ) -> Bucket | None:
        """The first bucket whose source range ends above `offset`; None: not copied yet."""
        numbers = [
            number
            for number in self._numbers.get(target_incarnation, [])
            if self.buckets[number].source_incarnation == source_incarnation
        ]
        at = bisect_right(numbers, offset, key=lambda one: self.buckets[one].source_to)
        return self.buckets[numbers[at]] if at < len(numbers) else None

    def copied_end(self, target_incarnation: bytes) -> EndOffset:
        """The end of the last bucket's target range; 0 without buckets of the incarnation."""
        numbers = self._numbers.get(target_incarnation)
        return self.buckets[numbers[-1]].target_to if numbers else EndOffset(0)

    def _last_of_each(self, numbers: list[int], end: int) -> Iterator[int]:
        """Of `numbers[:end]`, the last one of each source incarnation, whose numbers are a run."""
        at = 0
        while at < end:
            incarnation = self.buckets[numbers[at]].source_incarnation
            at = bisect_left(
                numbers,
                True,
                lo=at,
                hi=end,
                key=lambda one, same=incarnation: self.buckets[one].source_incarnation != same,
            )
            yield numbers[at - 1]


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
