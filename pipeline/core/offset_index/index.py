"""The offset index of one link into this cluster, for one data partition, as it is read.

*Source*: docs/protocols H3 (F_X), H6.
*Invariants*: buckets of another target incarnation than the one asked for are ignored; where only
the log can give the answer, the result names the bucket whose copies must be read.

A look-up costs a bisection and one step for each source incarnation.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from stilltide.pipeline.core.offset_index import claims, intervals
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import ClusterName, EndOffset, Offset


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
        """F_X: the source's records that were copied below `offset` of the target."""
        numbers = self._numbers.get(target_incarnation, [])
        behind = bisect_right(numbers, offset, key=lambda one: self.buckets[one].target_to)
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
        claimed = {one: intervals.below(end) for one, end in ends.items()}
        return Frontier(claims.minus(claimed, holes), undecided)

    def completed(self, found: Frontier, copied_to: int) -> Claims:
        """The claims of a frontier whose undecided bucket was copied up to `copied_to` below it."""
        bucket = found.undecided
        if bucket is None:
            return found.claimed
        more = {self.incarnation(bucket): intervals.below(copied_to)}
        return claims.join(found.claimed, claims.minus(more, bucket.holes))

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
