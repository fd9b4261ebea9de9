"""The aborted transactions of one data partition: floors, the set, and what parts hold of them.

*Source*: docs/protocols D4, E2, E3, E5.
*Invariants*: an id that was added is hidden for ever: it is removed only below a floor, and every
id below a floor is hidden. A pair's low watermarks were known before its end offset was read, so
every record of a sequence below them is below that end offset, or was written after its transaction
had ended. The end offset is the high watermark, because an open native transaction holds back the
last stable offset, and records may be above that. A sealed part never changes; parts are dropped
oldest first; a durable part that was dropped gets a tombstone.

A million ids of a set take about 70 MB: one int each, and a slot in the set of its coordinator. A
look-up takes less than a microsecond.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stilltide.schemas.snapshots.snapshots import (
    COORDINATOR_BYTES_MAX,
    AbortedIds,
    Floors,
    TrimPair,
    checksum,
    encode_part,
    id_bytes,
    part_key,
)
from stilltide.schemas.values import EndOffset, TopicPartition

PAIRS_MAX = 32
"""Most pairs kept for one data partition; a dropped inner pair only delays the trimming."""


def raised(floors: dict[int, int], by: Floors) -> None:
    """Raises floors in place; none is ever lowered."""
    for coordinator, sequence in by.items():
        if sequence > floors.get(coordinator, 0):
            floors[coordinator] = sequence


class TrimPairs:
    """Pairs in the order of their end offsets."""

    def __init__(self, pairs: Iterable[TrimPair] = ()) -> None:
        self._pairs = list(pairs)

    def __bool__(self) -> bool:
        return bool(self._pairs)

    def as_tuple(self) -> tuple[TrimPair, ...]:
        """The pairs as a snapshot's end holds them."""
        return tuple(self._pairs)

    def add(self, end_offset: EndOffset, low_watermarks: Floors) -> None:
        """Adds a pair; its low watermarks were known before its end offset was read."""
        if not low_watermarks:
            return
        if self._pairs and self._pairs[-1].end_offset >= end_offset:
            # Nothing was written since: the newer low watermarks hold for the older offset too.
            end_offset = self._pairs.pop().end_offset
        self._pairs.append(TrimPair(end_offset, low_watermarks))
        if len(self._pairs) > PAIRS_MAX:
            self._thin()

    def matured(self, log_start: EndOffset) -> list[TrimPair]:
        """Removes and returns the pairs whose end offset is at or below the log start."""
        count = sum(pair.end_offset <= log_start for pair in self._pairs)
        taken, self._pairs = self._pairs[:count], self._pairs[count:]
        return taken

    def _thin(self) -> None:
        """Drops the inner pair whose two neighbours are closest to each other."""
        offsets = [pair.end_offset for pair in self._pairs]
        inner = range(1, len(offsets) - 1)
        del self._pairs[min(inner, key=lambda at: offsets[at + 1] - offsets[at - 1])]


_NONE: frozenset[int] = frozenset()


class AbortedSet:
    """Ids of aborted transactions by coordinator, and the floors below which all are hidden."""

    def __init__(self, floors: Floors) -> None:
        self.floors: dict[int, int] = dict(floors)
        self._sequences: dict[int, set[int]] = {}

    def __len__(self) -> int:
        """How many ids are held; some may be below a floor."""
        return sum(map(len, self._sequences.values()))

    def hides(self, coordinator: int, sequence: int) -> bool:
        """Whether records of this transaction are hidden, whatever their offset (D4)."""
        return sequence < self.floors.get(coordinator, 0) or sequence in self._sequences.get(
            coordinator, _NONE
        )

    def holds(self, coordinator: int, sequence: int) -> bool:
        """Whether this transaction is known to have aborted."""
        return sequence in self._sequences.get(coordinator, _NONE)

    def by_coordinator(self) -> Mapping[int, set[int]]:
        """The sequences held for each coordinator; read only."""
        return self._sequences

    def add(self, coordinator: int, sequence: int) -> None:
        """Adds one id."""
        self._sequences.setdefault(coordinator, set()).add(sequence)

    def update(self, aborted: AbortedIds) -> None:
        """Adds many ids; 0.1 us for each."""
        for coordinator, sequences in aborted.items():
            self._sequences.setdefault(coordinator, set()).update(sequences)

    def raise_floors(self, floors: Floors) -> None:
        """Hides every id below the floors from now on; `prune` frees the memory of those ids."""
        raised(self.floors, floors)

    def lies_below(self, floors: Floors) -> bool:
        """Whether every id that is held is below these floors."""
        return all(
            max(sequences) < floors.get(coordinator, 0)
            for coordinator, sequences in self._sequences.items()
            if sequences
        )

    def prune(self) -> None:
        """Removes the ids below the floors; 0.05 us for each id that is held."""
        for coordinator, floor in self.floors.items():
            sequences = self._sequences.get(coordinator)
            if sequences is not None:
                self._sequences[coordinator] = {n for n in sequences if n >= floor}


class UnsealedIds:
    """Aborted ids that no sealed part holds yet, and how many bytes they would take in a part."""

    def __init__(self, ids: AbortedIds) -> None:
        self.ids: dict[int, list[int]] = {}
        self.bytes = 0
        for coordinator, sequences in ids.items():
            for sequence in sequences:
                self.add(coordinator, sequence, self.cost(coordinator, sequence))

    def cost(self, coordinator: int, sequence: int) -> int:
        """The most bytes that this id adds to the encoded ids."""
        sequences = self.ids.get(coordinator)
        if sequences is None:
            return COORDINATOR_BYTES_MAX + id_bytes(sequence, 0)
        return id_bytes(sequence, sequences[-1])

    def add(self, coordinator: int, sequence: int, cost: int) -> None:
        """Adds one id after the others; `cost` is the result of the method `cost`."""
        self.bytes += cost
        self.ids.setdefault(coordinator, []).append(sequence)

    def above(self, floors: Floors) -> "UnsealedIds":
        """The ids at or above the floors, in the same order; `self` if no id is below a floor."""
        if all(min(ids) >= floors.get(coordinator, 0) for coordinator, ids in self.ids.items()):
            return self
        kept = {
            coordinator: [n for n in sequences if n >= floors.get(coordinator, 0)]
            for coordinator, sequences in self.ids.items()
        }
        return UnsealedIds({coordinator: ids for coordinator, ids in kept.items() if ids})


SnapshotRecord = tuple[bytes, bytes | None]
"""Key and value; the value None is a tombstone."""


class SealedPart(NamedTuple):
    """A part that never changes.

    Attributes:
        number: number of the part, ascending from 1.
        checksum: checksum of the part's key and value.
        highest: highest sequence of each coordinator in the part.
        value: encoded ids; None once they are durable.
    """

    number: int
    checksum: int
    highest: Floors
    value: bytes | None


class SealedParts:
    """The parts of one data partition.

    Args:
        data: the data partition.
        part_bytes_max: most bytes of the ids of a sealed part.
    """

    def __init__(self, data: TopicPartition, part_bytes_max: int) -> None:
        self._data = data
        self._part_bytes_max = part_bytes_max
        self._unsealed = UnsealedIds({})
        self._sealed: deque[SealedPart] = deque()
        self._next_part = 1
        self._dropped: list[int] = []  # durable parts that need a tombstone

    def restore(
        self,
        first_part: int,
        checksums: Sequence[int],
        parts: Sequence[AbortedIds],
        unsealed: AbortedIds,
    ) -> None:
        """Takes durable parts in order, and the ids that are in no part."""
        for number, (crc, part) in enumerate(zip(checksums, parts, strict=True), first_part):
            self._sealed.append(SealedPart(number, crc, _highest(part), None))
        self._unsealed = UnsealedIds(unsealed)
        self._next_part = first_part + len(parts)

    @property
    def first_part(self) -> int:
        """Number of the oldest part."""
        return self._next_part - len(self._sealed)

    @property
    def checksums(self) -> tuple[int, ...]:
        """The checksums of the parts, in order."""
        return tuple(part.checksum for part in self._sealed)

    @property
    def unsealed(self) -> dict[int, list[int]]:
        """A copy of the ids that are in no part."""
        return {coordinator: list(ids) for coordinator, ids in self._unsealed.ids.items()}

    @property
    def durable_keys(self) -> list[bytes]:
        """Keys of the durable parts."""
        return [part_key(self._data, part.number) for part in self._sealed if part.value is None]

    def add(self, coordinator: int, sequence: int) -> None:
        """Adds a new aborted id; first seals the unsealed ids if there is no room for the id."""
        unsealed = self._unsealed
        cost = unsealed.cost(coordinator, sequence)
        if unsealed.ids and unsealed.bytes + cost > self._part_bytes_max:
            self._seal()
            cost = self._unsealed.cost(coordinator, sequence)
        self._unsealed.add(coordinator, sequence, cost)

    def _seal(self) -> None:
        """Makes a part of the unsealed ids (E2)."""
        ids, number = self._unsealed.ids, self._next_part
        value = encode_part(ids)
        crc = checksum(part_key(self._data, number), value)
        self._sealed.append(SealedPart(number, crc, _highest(ids), value))
        self._next_part += 1
        self._unsealed = UnsealedIds({})

    def trim(self, floors: Floors) -> bool:
        """E5: drops parts and ids below the floors; returns whether any were dropped."""
        left = False
        while self._sealed and _below(self._sealed[0].highest, floors):
            part = self._sealed.popleft()
            left = True
            if part.value is None:
                self._dropped.append(part.number)
        kept = self._unsealed.above(floors)
        if not left and kept is self._unsealed:
            return False
        self._unsealed = kept
        return True

    def written(self) -> tuple[list[SnapshotRecord], list[SnapshotRecord]]:
        """Records of parts not yet written, and tombstones of dropped parts; each is given once."""
        records: list[SnapshotRecord] = []
        for at, part in enumerate(self._sealed):
            if part.value is not None:
                records.append((part_key(self._data, part.number), part.value))
                self._sealed[at] = part._replace(value=None)
        dropped, self._dropped = self._dropped, []
        return records, [(part_key(self._data, number), None) for number in dropped]


def _highest(ids: AbortedIds) -> dict[int, int]:
    """The highest sequence of each coordinator."""
    return {coordinator: max(sequences) for coordinator, sequences in ids.items()}


def _below(highest: Mapping[int, int], floors: Floors) -> bool:
    return all(sequence < floors.get(coordinator, 0) for coordinator, sequence in highest.items())
