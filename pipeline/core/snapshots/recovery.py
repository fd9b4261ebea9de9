"""The snapshots in a partition of txn-snapshots, read at any state of its compaction.

*Source*: docs/protocols D4, E2, E3, E4, E8, E9, E10. Used by the snapshot writer, by subscriptions,
and by Spark.
*Invariants*: a snapshot is an end and exactly the parts that the end names, with their checksums. A
snapshot of which a part is missing is reported, never used: compaction may have removed a part for
which a newer end follows. Parts of a data partition without an end are reported too: each write
puts an end behind its parts, and tombstones of all parts beside the tombstone of the end (E3).

Refuses: to take a missing part for an empty one, or parts without an end for no snapshot; records
that cannot be decoded.
"""

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from stilltide.pipeline.core.snapshots.aborted import AbortedSet
from stilltide.pipeline.errors import SnapshotPartError, TopicRecreatedError
from stilltide.schemas.errors import DecodeError, damaged_at
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
    """Which records of a data partition are hidden, from F up to M.

    Attributes:
        end: last end that was read under the data partition's key.
        aborted: ids of the end and its parts, and the end's floors.
    """

    end: SnapshotEnd
    aborted: AbortedSet

    @property
    def max_read_position(self) -> EndOffset:
        """M: every transaction with a record below this offset has ended and is accounted for."""
        return self.end.max_read_position

    @property
    def valid_from(self) -> EndOffset:
        """F: the snapshot decides no record below this offset, for those have left the log."""
        return self.end.floors_valid_from

    def visible(self, offset: int, coordinator: int, sequence: int) -> bool | None:
        """Whether a coordinated record without marker is visible; None: undecided (D4).

        Takes about a microsecond, however many ids there are.
        """
        if offset < self.end.floors_valid_from:
            return None
        if self.aborted.hides(coordinator, sequence):
            return False
        return True if offset < self.end.max_read_position else None

    def hides(self, coordinator: int, sequence: int) -> bool:
        """Whether every record of this transaction at or past F is hidden."""
        return self.aborted.hides(coordinator, sequence)

    def holds(self, coordinator: int, sequence: int) -> bool:
        """Whether the aborted set holds this very transaction."""
        return self.aborted.holds(coordinator, sequence)


class SnapshotTable:
    """The latest record of each key in a partition of txn-snapshots.

    A value is decoded when it is asked for: the values that newer ones replace never are (E10).

    Args:
        partition: partition of txn-snapshots, for errors.
        only: data partitions to keep; None: all.
    """

    def __init__(self, partition: int, *, only: Collection[TopicPartition] | None = None) -> None:
        self._star = SnapshotStar(EndOffset(0), {})
        self._ends: dict[TopicPartition, SnapshotEnd] = {}
        self._partition = partition
        self._only = only
        self._new_star: tuple[Offset, bytes] | None = None
        self._new_ends: dict[TopicPartition, tuple[Offset, bytes]] = {}
        self._parts: dict[TopicPartition, dict[int, bytes]] = {}

    @property
    def star(self) -> SnapshotStar:
        """K* and the floors of data partitions without a snapshot; raises as `ends`."""
        self._decode()
        return self._star

    @property
    def ends(self) -> Mapping[TopicPartition, SnapshotEnd]:
        """The end of each data partition that has one.

        Raises:
            DecodeError: the last value of a key cannot be decoded; names its place.
        """
        self._decode()
        return self._ends

    def record_read(self, offset: Offset, key: bytes | None, value: bytes | None) -> None:
        """Takes the next record.

        Raises:
            DecodeError: the key is not of this topic, or of a later version; names its place.
        """
        with self._at(offset):
            name = decode_key(key)
        if isinstance(name, PartKey):
            if self._only is None or name.data in self._only:
                self._part_read(name, value)
        elif isinstance(name, EndKey):
            if self._only is None or name.data in self._only:
                if value is None:
                    self._ends.pop(name.data, None)
                    self._new_ends.pop(name.data, None)
                else:
                    self._new_ends[name.data] = (offset, value)
        elif value is not None:
            self._new_star = (offset, value)

    def absorbed_to(self, data: TopicPartition) -> EndOffset:
        """The offset below which snapshots have absorbed every marker of a data partition (E4, E9).

        K of the partition's end counts up to the last write of that end, K* up to the last write of
        any end: the higher one holds.
        """
        star, end = self.star.markers_covered_to, self.ends.get(data)
        return star if end is None else max(star, end.markers_covered_to)

    def without_end(self) -> list[TopicPartition]:
        """The data partitions that have parts and no end, in order.

        While the table is being read this is normal: compaction leaves parts in front of the end
        that names them. Once a last stable offset is reached it is damage.
        """
        return sorted(data for data in self._parts if data not in self.ends)

    def check_ends(self) -> None:
        """Returns if every data partition with parts has an end.

        Raises:
            SnapshotPartError: one has none; see `snapshot`.
        """
        for data in self.without_end():
            raise self._no_end(data)

    def part_values(self, data: TopicPartition) -> Mapping[int, bytes]:
        """Values under the keys of a data partition's parts, whether or not the end names them."""
        return self._parts.get(data, {})

    def parts(self, data: TopicPartition) -> list[dict[int, list[int]]]:
        """The sealed parts that the end of a data partition names, in order; 0.1 us for each id.

        Raises:
            SnapshotPartError: a part is missing, or has another checksum than the end names.
                Compaction may have removed it for a newer end: the caller reads on, up to a new
                last stable offset. Without a newer end the snapshot cannot be used.
        """
        return self._parts_from(data, 0)

    def snapshot(
        self, data: TopicPartition, topic_id: bytes, last: Snapshot | None = None
    ) -> Snapshot | None:
        """The snapshot of a data partition; None: there is neither an end nor a part (D5).

        Call it when the topic was read up to a last stable offset.

        Args:
            data: the data partition.
            topic_id: id of the topic whose records are read.
            last: snapshot that was returned before; its set is taken over, not copied.

        Raises:
            SnapshotPartError: a part is missing or another one, or there is no end for the parts;
                see `parts`.
            TopicRecreatedError: the snapshot belongs to another topic of the same name (E8).
        """
        end = self.ends.get(data)
        if end is None:
            if data in self._parts:
                raise self._no_end(data)
            return None
        if end.topic_id != topic_id:
            raise TopicRecreatedError(
                f"the snapshot of {data} is of another topic of that name",
                detail=f"it is of {end.topic_id.hex()}, read is {topic_id.hex()}",
                hint="the topic was created again: begin again, or wait for its first snapshot",
                data=data,
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

    def _part_read(self, name: PartKey, value: bytes | None) -> None:
        parts = self._parts.setdefault(name.data, {})
        if value is not None:
            parts[name.number] = value
            return
        parts.pop(name.number, None)
        if not parts:
            del self._parts[name.data]

    def _decode(self) -> None:
        """Decodes the values read since the last call; a star of a later version stops readers."""
        if self._new_star is not None:
            offset, value = self._new_star
            with self._at(offset):
                self._star = decode_star(value)
            self._new_star = None
        for data, (offset, value) in self._new_ends.items():
            with self._at(offset):
                self._ends[data] = decode_end(value)
        self._new_ends.clear()

    @contextmanager
    def _at(self, offset: Offset) -> Generator[None]:
        """Names the place of a record that cannot be decoded."""
        try:
            yield
        except DecodeError as error:
            raise damaged_at(error, TXN_SNAPSHOTS, self._partition, offset) from None

    def _parts_from(self, data: TopicPartition, skipped: int) -> list[dict[int, list[int]]]:
        end = self.ends[data]
        values = self._parts.get(data, {})
        named = list(enumerate(end.part_checksums, end.first_part))[skipped:]
        return [self._part(data, number, crc, values) for number, crc in named]

    def _part(
        self, data: TopicPartition, number: int, crc: int, values: Mapping[int, bytes]
    ) -> dict[int, list[int]]:
        value = values.get(number)
        if value is not None and checksum(part_key(data, number), value) == crc:
            try:
                return decode_part(value)
            except DecodeError as error:
                error.topic, error.partition = TXN_SNAPSHOTS, self._partition
                raise
        raise self._gap(
            f"part {number} of the snapshot of {data} "
            + ("is missing" if value is None else "is not the one its end names")
        )

    def _no_end(self, data: TopicPartition) -> SnapshotPartError:
        numbers = sorted(self._parts[data])
        return self._gap(
            f"the snapshot of {data} has {len(numbers)} parts from {numbers[0]} on, and no end"
        )

    def _gap(self, primary: str) -> SnapshotPartError:
        return SnapshotPartError(
            primary,
            detail="without it, records of aborted transactions could be delivered",
            hint="read the topic to its end; if that does not help, this shows what can be done: "
            f"stilltide repair {TXN_SNAPSHOTS} --partition {self._partition}",
            topic=TXN_SNAPSHOTS,
            partition=self._partition,
        )


def _parts_in_common(last: Snapshot | None, end: SnapshotEnd) -> int:
    """How many of an end's first parts the last snapshot held too; 0: its set cannot be reused."""
    if last is None:
        return 0
    before = dict(enumerate(last.end.part_checksums, last.end.first_part))
    count = 0
    for number, crc in enumerate(end.part_checksums, end.first_part):
        if before.get(number) != crc:
            break
        count += 1
    return count
