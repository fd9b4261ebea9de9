"""What a partition of txn-snapshots says, read from any legal state of a compacted topic.

*Source*: docs/protocols D4, E2-E4, E8. One function for its three users: the snapshot writer, the
reader of a subscription, and Spark.
*Invariants*: a snapshot is an end and exactly the parts that it names, checksums included; what is
read up to a last stable offset is whole or says that it is not, since compaction may run ahead.

Refuses: to take a gap for an empty set; records that it cannot understand.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.errors import SnapshotPartError, TopicRecreatedError
from stilltide.schemas.errors import DecodeError
from stilltide.schemas.snapshots.snapshots import (
    EndKey,
    PartKey,
    SnapshotEnd,
    SnapshotStar,
    checksum,
    decode_end,
    decode_key,
    decode_part,
    decode_star,
    part_key,
)
from stilltide.schemas.topics import TXN_SNAPSHOTS
from stilltide.schemas.values import EndOffset, Offset, TopicPartition


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Which records of a data partition are hidden, and up to where that is all there is to know.

    Attributes:
        end: what was read last under the data partition's key.
        aborted: every id of the end and its parts, above its floors.
    """

    end: SnapshotEnd
    aborted: AbortedSet

    @property
    def max_read_position(self) -> EndOffset:
        """Every transaction with a record below it has ended, and is accounted for (M)."""
        return self.end.max_read_position

    @property
    def valid_from(self) -> EndOffset:
        """It decides nothing below: those records have left the log (F)."""
        return self.end.floors_valid_from

    def visible(self, offset: int, coordinator: int, sequence: int) -> bool | None:
        """What becomes of a coordinated record whose outcome no marker tells; None: undecided (D4).

        Takes about a microsecond, however many ids there are.
        """
        if offset < self.end.floors_valid_from:
            return None
        if self.aborted.hides(coordinator, sequence):
            return False
        return True if offset < self.end.max_read_position else None

    def hides(self, coordinator: int, sequence: int) -> bool:
        """Whether records of this transaction are hidden wherever they lie, at or past F."""
        return self.aborted.hides(coordinator, sequence)

    def holds(self, coordinator: int, sequence: int) -> bool:
        """Whether it says of this very transaction that it aborted."""
        return self.aborted.holds(coordinator, sequence)


class SnapshotTable:
    """The latest record of each key.

    Args:
        partition: of txn-snapshots, for errors.
        only: data partitions of interest; None: all.
    """

    def __init__(self, partition: int, *, only: Collection[TopicPartition] | None = None) -> None:
        self.star = SnapshotStar(EndOffset(0), {})
        self.ends: dict[TopicPartition, SnapshotEnd] = {}
        self._partition = partition
        self._only = only
        self._parts: dict[TopicPartition, dict[int, bytes]] = {}

    def record_read(self, offset: Offset, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record.

        Raises:
            DecodeError: it is none of this topic, or of a later version; names its place.
        """
        try:
            self._record_read(key, value)
        except DecodeError as error:
            raise error.at(TXN_SNAPSHOTS, self._partition, offset) from None

    def part_values(self, data: TopicPartition) -> Mapping[int, bytes]:
        """What lies under the keys of a data partition's parts, whether its end names it or not."""
        return self._parts.get(data, {})

    def parts(self, data: TopicPartition) -> list[dict[int, list[int]]]:
        """The sealed parts that the end of a data partition names, in order; 0.1 us for each id.

        Raises:
            SnapshotPartError: one is missing, or is not the one that is named. Compaction may have
                run ahead: read on, up to a new last stable offset. If nothing newer is there, the
                snapshot cannot be used.
        """
        return self._parts_from(data, 0)

    def snapshot(
        self, data: TopicPartition, topic_id: bytes, last: Snapshot | None = None
    ) -> Snapshot | None:
        """The snapshot of a data partition; None: there is none (D5).

        Args:
            data: the data partition.
            topic_id: of the topic that is read.
            last: what was returned before; its set is taken over, not copied.

        Raises:
            SnapshotPartError: as for `parts`.
            TopicRecreatedError: its offsets are not those of the topic that is read (E8).
        """
        end = self.ends.get(data)
        if end is None:
            return None
        if end.topic_id != topic_id:
            raise TopicRecreatedError(
                f"the snapshot of {data} is of another topic of that name",
                detail=f"it is of {end.topic_id.hex()}, read is {topic_id.hex()}",
                hint="the topic was created anew: begin again, or wait for its first snapshot",
                topic=data.topic,
                partition=data.partition,
            )
        known = _parts_in_common(last, end)
        aborted = last.aborted if last is not None and known else AbortedSet({})
        for part in self._parts_from(data, known):
            aborted.update(part)
        aborted.update(end.unsealed)
        aborted.raise_floors(end.floors)
        if last is not None and last.end.first_part != end.first_part:
            aborted.prune()
        return Snapshot(end, aborted)

    def _record_read(self, key: bytes | None, value: bytes | None) -> None:
        name = decode_key(key)
        if isinstance(name, PartKey):
            if self._only is None or name.data in self._only:
                parts = self._parts.setdefault(name.data, {})
                if value is None:
                    parts.pop(name.number, None)
                else:
                    parts[name.number] = value
        elif isinstance(name, EndKey):
            if self._only is None or name.data in self._only:
                if value is None:
                    self.ends.pop(name.data, None)
                else:
                    self.ends[name.data] = decode_end(value)
        elif value is not None:
            self.star = decode_star(value)

    def _parts_from(self, data: TopicPartition, skipped: int) -> list[dict[int, list[int]]]:
        end = self.ends[data]
        held = self._parts.get(data, {})
        named = list(enumerate(end.part_checksums, end.first_part))[skipped:]
        return [self._part(data, number, crc, held) for number, crc in named]

    def _part(
        self, data: TopicPartition, number: int, crc: int, held: Mapping[int, bytes]
    ) -> dict[int, list[int]]:
        value = held.get(number)
        if value is not None and checksum(part_key(data, number), value) == crc:
            try:
                return decode_part(value)
            except DecodeError as error:
                error.topic, error.partition = TXN_SNAPSHOTS, self._partition
                raise
        raise SnapshotPartError(
            f"part {number} of the snapshot of {data} "
            + ("is missing" if value is None else "is not the one its end names"),
            detail="without it, records of aborted transactions could be delivered",
            hint="read the topic to its end; if that does not help, restore txn-snapshots",
            topic=TXN_SNAPSHOTS,
            partition=self._partition,
        )


def _parts_in_common(last: Snapshot | None, end: SnapshotEnd) -> int:
    """How many parts of an end the last snapshot held too; 0 if its set is of no use."""
    if last is None:
        return 0
    before = dict(enumerate(last.end.part_checksums, last.end.first_part))
    count = 0
    for number, crc in enumerate(end.part_checksums, end.first_part):
        if before.get(number) != crc:
            break
        count += 1
    return count
