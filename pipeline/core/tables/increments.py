"""Decides which offsets the next batch of a table holds: a machine.

*Source*: docs/protocols K1, K3, K4.

*Invariants*:
- K1 A batch ends at or below the stable end, and no record of a batch is undecided.
- K3 A batch begins where the stored progress ends, for every partition; nothing is left out, and
  nothing is in two batches.

Refuses: progress of other topics, of a topic that was created again, below a log start, or past a
log's end; then no batch is planned.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stilltide.pipeline.errors import TableError
from stilltide.schemas.tables.progress import TableProgress
from stilltide.schemas.values import EndOffset, Offset, OffsetRange, TopicPartition, TxnId


class PartitionBounds(NamedTuple):
    """What is known of a partition, all as of one moment.

    Attributes:
        start: log start.
        stable_end: the last stable offset, or where aborted-index ends if the index is used.
        decided_end: M of the partition's snapshot, 0 without a snapshot: every record below it is
            decided.
    """

    start: Offset
    stable_end: EndOffset
    decided_end: EndOffset


class TopicBounds(NamedTuple):
    """What is known of the topics.

    Attributes:
        topic_ids: Kafka's 16-byte id of each topic.
        partitions: every partition of the topics.
    """

    topic_ids: Mapping[str, bytes]
    partitions: Mapping[TopicPartition, PartitionBounds]


class WaitsFor(NamedTuple):
    """The first undecided record of a range, and its transaction."""

    offset: Offset
    txn: TxnId


@dataclass(frozen=True)
class ScanTails:
    """Look for the first undecided record of each range, by the evidence of the last bounds."""

    reads: tuple[OffsetRange, ...]


@dataclass(frozen=True)
class StoreBatch:
    """Store the visible records of `reads` and `progress` in one atomic step (K2).

    Everything that the progress before this one covers is stored.
    """

    reads: tuple[OffsetRange, ...]
    progress: TableProgress


Effect = ScanTails | StoreBatch


class Increments:
    """Plans batches, one after the other.

    Args:
        topics: names of the topics.
        stored: the progress that the table holds; `NOTHING` for a new table.
        offsets_max: approximate limit of offsets in a batch, over all partitions; >= 1.

    Raises:
        TableError: the table holds other topics.
    """

    def __init__(self, topics: Sequence[str], stored: TableProgress, offsets_max: int) -> None:
        assert offsets_max >= 1
        if stored.topic_ids and sorted(stored.topic_ids) != sorted(set(topics)):
            raise TableError(
                "the table holds other topics",
                detail=f"stored until now: {', '.join(sorted(stored.topic_ids))}",
                hint="name the same topics, or write to another table",
            )
        self._stored = stored
        self._offsets_max = offsets_max
        self._bounds = TopicBounds({}, {})
        self._planned: tuple[OffsetRange, ...] = ()
        self._blocked: dict[TopicPartition, WaitsFor] = {}

    @property
    def stored(self) -> TableProgress:
        """The progress after the last batch that was stored."""
        return self._stored

    @property
    def blocked(self) -> Mapping[TopicPartition, WaitsFor]:
        """The record at which a partition waits for an outcome."""
        return self._blocked

    @property
    def left(self) -> int:
        """Offsets up to the stable ends that are not stored."""
        bounds = self._bounds.partitions
        return sum(read.stable_end - self._position(data) for data, read in bounds.items())

    def readable(self) -> tuple[OffsetRange, ...]:
        """All that batches and scans may hold until the next bounds: not empty ranges."""
        bounds = self._bounds.partitions
        left = (
            self._cut(OffsetRange(data, self._position(data), bounds[data].stable_end))
            for data in sorted(bounds)
        )
        return tuple(read for read in left if read.start < read.end)

    def bounds_read(self, bounds: TopicBounds, decided: Sequence[TopicPartition] = ()) -> None:
        """Takes newer bounds; the next plan uses them.

        Args:
            bounds: of all topics.
            decided: partitions whose blocking transaction has an outcome now.

        Raises:
            TableError: a topic was created again, records were deleted unread, or a log lost
                its end.
        """
        self._check_ids(bounds.topic_ids)
        for data, known in bounds.partitions.items():
            self._check_position(data, known)
        self._bounds = bounds
        self._planned = ()
        for data, first in list(self._blocked.items()):
            known = bounds.partitions.get(data)
            if data in decided or (known is not None and known.decided_end > first.offset):
                del self._blocked[data]

    def plan(self) -> list[Effect]:
        """The next batch, or the scan that has to come first; nothing if all is stored."""
        left = [self._readable(data) for data in sorted(self._bounds.partitions)]
        reads = tuple(
            read for read in bounded_shares(left, self._offsets_max) if read.start < read.end
        )
        self._planned = reads
        bounds = self._bounds.partitions
        tails = tuple(read for read in reads if read.end > bounds[read.data].decided_end)
        if tails:
            return [ScanTails(tails)]
        return self._batch()

    def scanned(self, waits: Mapping[TopicPartition, WaitsFor]) -> list[Effect]:
        """Takes the result of the last scan: partitions end before what is undecided (K1)."""
        self._blocked |= {
            read.data: waits[read.data] for read in self._planned if read.data in waits
        }
        self._planned = tuple(
            cut for read in self._planned if (cut := self._cut(read)).start < cut.end
        )
        return self._batch()

    def batch_stored(self, progress: TableProgress) -> None:
        """Takes that the planned batch is stored; any other progress is ignored."""
        if self._planned and progress == self._progress():
            self._stored = progress
            self._planned = ()

    def _batch(self) -> list[Effect]:
        return [StoreBatch(self._planned, self._progress())] if self._planned else []

    def _progress(self) -> TableProgress:
        positions = dict(self._stored.positions)
        # Also the partitions that hold nothing yet: what is deleted from them unread is noticed.
        positions |= {data: self._position(data) for data in self._bounds.partitions}
        positions |= {read.data: Offset(read.end) for read in self._planned}
        return TableProgress(self._stored.number + 1, dict(self._bounds.topic_ids), positions)

    def _position(self, data: TopicPartition) -> Offset:
        """K3: where the stored progress ends."""
        return self._stored.positions.get(data, self._bounds.partitions[data].start)

    def _readable(self, data: TopicPartition) -> OffsetRange:
        """From the position to where reading may go; to M if M is ahead, which needs no scan."""
        start, known = self._position(data), self._bounds.partitions[data]
        end = known.stable_end
        if start < known.decided_end:
            end = min(end, known.decided_end)
        return self._cut(OffsetRange(data, start, end))

    def _cut(self, read: OffsetRange) -> OffsetRange:
        first = self._blocked.get(read.data)
        return read if first is None else read._replace(end=min(read.end, EndOffset(first.offset)))

    def _check_ids(self, topic_ids: Mapping[str, bytes]) -> None:
        """K4: refuses progress of other topics."""
        for topic, known in self._stored.topic_ids.items():
            if topic_ids.get(topic) != known:
                raise TableError(
                    "the table holds records of another topic of this name",
                    detail="the topic was deleted or created again, or is on another cluster",
                    hint="the offsets of the new topic begin again: write to another table",
                    topic=topic,
                )

    def _check_position(self, data: TopicPartition, known: PartitionBounds) -> None:
        """K4: refuses a position that the log does not hold."""
        position = self._stored.positions.get(data, known.start)
        if position < known.start:
            raise TableError(
                f"records from {position} on were deleted before they were stored",
                detail=f"the log begins at {known.start}",
                hint="retention overtook the table: raise the topic's retention, and write to"
                " another table",
                data=data,
                offset=position,
            )
        if position > known.stable_end:
            raise TableError(
                f"the log ends at {known.stable_end}, below what the table holds",
                detail="the log lost its end in an unclean leader election, or the index of aborted"
                " transactions was dropped",
                hint="if the log was cut off, the table holds records that no reader can see any"
                " more: write to another table; if the index was dropped, let it catch up",
                data=data,
                offset=position,
            )


def bounded_shares(left: Sequence[OffsetRange], offsets_max: int) -> tuple[OffsetRange, ...]:
    """The beginnings of the ranges, together of about `offsets_max` offsets.

    Partitions that have little left leave their share to the others. Each range that is not empty
    gets one offset at least, so the result may have as many offsets as there are ranges.
    """
    taken = dict.fromkeys((read.data for read in left), 0)
    free, waiting = offsets_max, [read for read in left if read.end > read.start]
    for number, read in enumerate(sorted(waiting, key=lambda r: r.end - r.start)):
        share = min(read.end - read.start, max(1, free // (len(waiting) - number)))
        taken[read.data] = share
        free -= share
    return tuple(read._replace(end=EndOffset(read.start + taken[read.data])) for read in left)
