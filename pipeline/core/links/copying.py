"""A link's position in one data partition, and what the open transaction adds to the offset index.

*Source*: docs/protocols H1, H3, H5, H6, H10.
*Invariants*: offsets of the source are taken in order, each once, and the position moves only in
the transaction of the copies; offsets that left the source's log uncopied become a hole before any
later record is copied; a bucket never joins offsets of two incarnations. Records without key, of
which a topic that compacts takes none, are judged in order, and none is copied behind one that
waits (H10).
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from stilltide.pipeline.core.offset_index import index
from stilltide.pipeline.core.offset_index.claims import NO_CLAIMS
from stilltide.pipeline.core.offset_index.index import SPAN_MAX, OffsetIndex, Stretch
from stilltide.schemas.replication.origins import Claims, Incarnation, Origin
from stilltide.schemas.replication.positions import Bucket
from stilltide.schemas.values import EndOffset, Offset, Range, TopicPartition

P = TypeVar("P")

SourceRecord = tuple[Offset, Origin | None, P]
"""A visible, decided record of the source: its offset, its `origin` header, and a payload of which
the driver makes the copy."""

BucketChange = tuple[int, Bucket | None]
"""A bucket's number and the bucket; None: the bucket is dropped."""


class Topics(NamedTuple):
    """A data partition on both sides, read at one moment.

    Attributes:
        source: incarnation of the topic on the source.
        target: incarnation of the topic on the target.
        source_log_start: log start offset on the source.
        target_log_start: log start offset on the target.
    """

    source: bytes
    target: bytes
    source_log_start: Offset
    target_log_start: Offset


@dataclass(slots=True)
class _Chunk:
    """A range of source offsets in the open transaction that fits into one bucket."""

    source_from: Offset
    source_to: EndOffset
    copy_count: int


class CopiedPartition(Generic[P]):
    """One data partition of a link.

    Args:
        index: the partition's buckets that are durable on the target.
    """

    def __init__(self, index: OffsetIndex) -> None:
        self.index = index
        self.topics: Topics | None = None
        self.position = EndOffset(0)  # including the records of the open transaction
        self._holes: Claims = NO_CLAIMS
        self._jumped = False  # the next stretch does not continue the newest bucket
        self._chunks: list[_Chunk] = []
        self._trimmed_to = Offset(0)  # target log start at the last look for dropped buckets

    @property
    def moved(self) -> bool:
        """Whether the durable position differs from `position`."""
        return self._jumped or bool(self._chunks)

    @property
    def chunk_count(self) -> int:
        """How many chunks of the partition the open transaction has."""
        return len(self._chunks)

    def topics_read(self, topics: Topics) -> Range | None:
        """Takes both sides (H6); returns what left the source's log uncopied (H5), or None.

        Not called while a transaction holds records of the partition.
        """
        assert not self._chunks
        newest, self.topics = self.index.newest, topics
        at: int = 0
        if newest is None or newest.target_incarnation != topics.target:
            self._holes, self._jumped = NO_CLAIMS, True
        elif newest.source_incarnation != topics.source:
            self._holes, self._jumped = newest.holes, True
        else:
            self._holes, at = newest.holes, newest.source_to
            self._jumped = False
        self.position = EndOffset(max(at, topics.source_log_start))
        if self.position == at:
            return None
        source = Incarnation(self.index.source, topics.source)
        self._holes = index.with_hole(self._holes, source, at, self.position)
        self._jumped = True
        return Range(Offset(at), self.position)

    def take(
        self, records: Sequence[SourceRecord[P]], until: EndOffset
    ) -> list[tuple[int, list[SourceRecord[P]]]]:
        """Takes the local records below `until`; returns them by chunk, in the order to copy."""
        taken: list[tuple[int, list[SourceRecord[P]]]] = []
        at = 0
        while at < len(records):
            chunk = self._chunk_for(records[at][0])
            end = bisect_left(records, chunk.source_from + SPAN_MAX, lo=at, key=_offset)
            chunk.copy_count += end - at
            chunk.source_to = EndOffset(records[end - 1][0] + 1)
            taken.append((len(self._chunks) - 1, list(records[at:end])))
            self.position, at = chunk.source_to, end
        if until > self.position:
            chunk = self._chunks[-1] if self._chunks else self._next_chunk()
            self.position = chunk.source_to = until
        return taken

    def _chunk_for(self, offset: int) -> _Chunk:
        if self._chunks and offset - self._chunks[-1].source_from < SPAN_MAX:
            return self._chunks[-1]
        chunk = self._next_chunk()
        if offset - chunk.source_from >= SPAN_MAX:  # a long stretch without records came before
            chunk.source_to = EndOffset(offset)
            self.position = chunk.source_to
            chunk = self._next_chunk()
        return chunk

    def _next_chunk(self) -> _Chunk:
        chunk = _Chunk(Offset(self.position), self.position, 0)
        self._chunks.append(chunk)
        return chunk

    def changes(
        self, copies: Sequence[Range | None], target_log_start: Offset
    ) -> list[BucketChange]:
        """The buckets that the transaction writes, and tombstones of those that it drops.

        Args:
            copies: for each chunk, the range of target offsets that contains its copies.
            target_log_start: log start offset on the target.
        """
        assert self.topics is not None
        assert len(copies) == len(self._chunks)
        written: dict[int, Bucket] = {}
        number = max(self.index.buckets, default=-1)
        newest, jumped = self.index.newest, self._jumped
        for stretch in self._stretches(copies):
            grown = index.extended(newest, stretch) if newest and not jumped else None
            if grown is None:
                number += 1
                grown = index.following(
                    newest, self.topics.source, self.topics.target, stretch, self._holes
                )
            newest, jumped = grown, False
            written[number] = grown
        dropped: list[int] = []
        if self._jumped or target_log_start > self._trimmed_to:
            buckets = self.index.buckets | written
            dropped = index.dropped(buckets, self.topics.target, target_log_start)
            self._trimmed_to = target_log_start
        changes: dict[int, Bucket | None] = {**written, **dict.fromkeys(dropped)}
        return sorted(changes.items())

    def _stretches(self, copies: Sequence[Range | None]) -> list[Stretch]:
        stretches: list[Stretch] = []
        for chunk, interval in zip(self._chunks, copies, strict=True):
            assert (interval is not None) == bool(chunk.copy_count), "copies are lost"
            stretches.append(Stretch(chunk.source_from, chunk.source_to, interval))
        if not stretches:
            stretches.append(Stretch(Offset(self.position), self.position, None))
        return stretches

    def committed(self, changes: Sequence[BucketChange]) -> None:
        """The transaction with these changes is durable."""
        for number, bucket in changes:
            self.index.bucket_read(number, bucket)
        self._chunks.clear()
        self._jumped = False


def _offset(record: SourceRecord[P]) -> int:
    return record[0]


class Sifted(NamedTuple, Generic[P]):
    """What may be copied of the records below an offset.

    Attributes:
        records: the records to copy.
        until: end offset of what is done with.
        left_out: offsets of records that are not copied.
        waits_at: offset of the record that the partition waits at; None: it does not wait.
    """

    records: Sequence[SourceRecord[P]]
    until: EndOffset
    left_out: Sequence[Offset] = ()
    waits_at: Offset | None = None


class Keyless(Generic[P]):
    """H10: decides which records of one link are left out, and which partitions wait.

    Args:
        compacting: topics that are known to compact on the target.
        skips: whether records without key are left out; else their partitions wait.
        lacks_key: whether the record of a payload has no key.

    Attributes:
        waiting: partitions that wait.
    """

    def __init__(
        self,
        compacting: frozenset[str] = frozenset(),
        *,
        skips: bool = False,
        lacks_key: Callable[[P], bool] = lambda _: False,
    ) -> None:
        self._compacting = compacting
        self._skips = skips
        self._lacks_key = lacks_key
        self.waiting: set[TopicPartition] = set()

    def sift(
        self, data: TopicPartition, records: Sequence[SourceRecord[P]], until: EndOffset
    ) -> Sifted[P]:
        """What may be copied of a partition that does not wait."""
        if data.topic not in self._compacting:
            return Sifted(records, until)
        left_out = [offset for offset, _, payload in records if self._lacks_key(payload)]
        if not left_out:
            return Sifted(records, until)
        if self._skips:
            kept = [one for one in records if not self._lacks_key(one[2])]
            return Sifted(kept, until, left_out)
        self.waiting.add(data)
        first = left_out[0]
        before = [one for one in records if one[0] < first]
        return Sifted(before, EndOffset(first), waits_at=first)
